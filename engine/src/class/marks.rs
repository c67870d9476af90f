// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The marks of each class's packets on one link. Input: the configuration, and the link's type. Output: a DSCP for
//! each class, and a user priority for a radio that does not know it. `docs/reference/classes-and-marks.md` has the table and its reasons.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::MarksSection;
use crate::model::{Class, Dscp, Mark};

/// In 802.1D: the access category AC_BK.
const BACKGROUND_PRIORITY: u8 = 1;

/// The classes with a mark.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct LinkMarks(Vec<ClassMark>);

#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct ClassMark {
    pub class: Class,
    pub dscp: Dscp,
    /// In 802.1D, for Wi-Fi.
    pub user_priority: Option<u8>,
}

impl MarksSection {
    fn of(&self, class: Class) -> Mark {
        match class {
            Class::Realtime => self.realtime,
            Class::Stream => self.stream,
            Class::Standard => self.standard,
            Class::Bulk => self.bulk,
            Class::Background => self.background,
        }
    }
}

impl LinkMarks {
    /// `may_be_wifi`: the link may be a radio. `is_priority_free`: giveway does not use `skb->priority` otherwise.
    pub fn new(configured: &MarksSection, may_be_wifi: bool, is_priority_free: bool) -> Self {
        let mark = |class| {
            let Mark::Write(dscp) = configured.of(class) else {
                return None;
            };
            // RFC 8325 as updated by RFC 8622 maps LE to AC_BK. Linux looks at the first three bits, which are 0.
            let is_unknown = may_be_wifi && dscp == Dscp::LE;
            Some(ClassMark {
                class,
                dscp: if is_unknown && !is_priority_free {
                    Dscp::CS1
                } else {
                    dscp
                },
                user_priority: (is_unknown && is_priority_free).then_some(BACKGROUND_PRIORITY),
            })
        };
        Self(Class::ALL.into_iter().filter_map(mark).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &ClassMark> {
        self.0.iter()
    }

    /// None: its packets keep their own mark.
    pub fn of(&self, class: Class) -> Option<Dscp> {
        self.0.iter().find(|mark| mark.class == class).map(|mark| mark.dscp)
    }
}

#[cfg(any(test, feature = "corpus"))]
impl FromIterator<ClassMark> for LinkMarks {
    fn from_iter<I: IntoIterator<Item = ClassMark>>(marks: I) -> Self {
        Self(marks.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn marks(text: &str, may_be_wifi: bool, is_priority_free: bool) -> Vec<(Class, Dscp, Option<u8>)> {
        let config = Config::parse(text).unwrap();
        let marks = LinkMarks::new(&config.marks, may_be_wifi, is_priority_free);
        marks
            .iter()
            .map(|mark| (mark.class, mark.dscp, mark.user_priority))
            .collect()
    }

    #[test]
    fn only_background_is_marked_by_default() {
        assert_eq!(marks("", false, true), [(Class::Background, Dscp::LE, None)]);
        assert_eq!(marks("[marks]\nbackground = \"keep\"\n", false, true), []);
        let more = "[marks]\nrealtime = \"EF\"\nstream = \"AF41\"\nbackground = \"8\"\n";
        let more = marks(more, true, true);
        let ef_af41_and_cs1 = [46, 34, 8].map(|number| (Dscp::new(number), None));
        assert_eq!(
            more.iter()
                .map(|(_, dscp, priority)| (*dscp, *priority))
                .collect::<Vec<_>>(),
            ef_af41_and_cs1
        );
    }

    #[test]
    fn lower_effort_reaches_ac_bk_by_its_user_priority_or_as_cs1() {
        assert_eq!(marks("", true, true), [(Class::Background, Dscp::LE, Some(1))]);
        assert_eq!(marks("", true, false), [(Class::Background, Dscp::CS1, None)]);
        assert_eq!(marks("", false, false), [(Class::Background, Dscp::LE, None)]);
    }

    #[test]
    fn an_invalid_mark_is_refused_with_the_valid_ones() {
        let problem = Config::parse("[marks]\nbulk = \"AF9\"\n").unwrap_err().to_string();
        assert!(
            problem.contains("marks.bulk") && problem.contains("`keep` leaves it as it is"),
            "{problem}"
        );
    }
}
