// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a screen is made of, one part a file. Each draws a part of the model, or says which rows and columns its table has; none changes
//! anything.

pub mod bands;
pub mod footer;
pub mod limits;
pub mod neighbours;
pub mod pane;
pub mod processes;
pub mod queue;
pub mod realtime;
pub mod sockets;
pub mod summary;
pub mod tabs;
