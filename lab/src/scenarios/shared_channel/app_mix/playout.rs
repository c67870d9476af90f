// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A live stream as its viewer sees it. Input: when each frame was created and had arrived, and the buffer before the
//! first is shown. Output: how often and how long the picture stalls, and which frames are too late for a viewer who
//! does not wait. Pure.

use crate::traffic::application::SentPart;

#[derive(Debug, Default, PartialEq)]
pub struct Playout {
    /// A frame is missing when it is to be shown; the viewer waits for it, and lags that much more from then on.
    pub stalls: u64,
    pub stalled_ns: u64,
    /// Frames that would be late without these waits.
    pub late: u64,
}

pub fn play(frames: &[SentPart], buffer_ns: u64) -> Playout {
    let Some(first) = frames.first() else {
        return Playout::default();
    };
    let mut playout = Playout::default();
    for frame in frames {
        let due_ns = first.arrived_ns + buffer_ns + (frame.made_ns - first.made_ns);
        playout.late += u64::from(frame.arrived_ns > due_ns);
        let waits_ns = frame.arrived_ns.saturating_sub(due_ns + playout.stalled_ns);
        playout.stalls += u64::from(waits_ns > 0);
        playout.stalled_ns += waits_ns;
    }
    playout
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames made every 10, each with so much delay; a buffer of 20.
    fn played(delays: &[u64]) -> Playout {
        let frame = |(number, delay): (usize, &u64)| {
            let made_ns = 1_000 + 10 * number as u64;
            SentPart {
                made_ns,
                arrived_ns: made_ns + delay,
            }
        };
        let frames: Vec<_> = delays.iter().enumerate().map(frame).collect();
        play(&frames, 20)
    }

    #[test]
    fn delays_within_the_buffer_do_not_stall() {
        assert_eq!(played(&[]), Playout::default());
        assert_eq!(played(&[5, 25, 5, 25]), Playout::default());
    }

    #[test]
    fn late_frame_stalls_once() {
        let stalled = Playout {
            stalls: 1,
            stalled_ns: 10,
            late: 3,
        };
        assert_eq!(played(&[5, 35, 35, 30, 25]), stalled);
    }
}
