// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How packets come in: settings of the managed device, and its NAPI threads.
//! Each change is journalled before it is made, and taken back from there, in this process or after its death. It decides
//! nothing.

mod napi;
pub mod settings;

pub use napi::NapiThreads;
pub use settings::Setting;
