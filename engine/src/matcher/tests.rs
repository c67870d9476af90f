// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processes and packets a rule matches.

use super::*;

fn camera() -> Process {
    Process {
        exe: "/usr/bin/python3.11".to_owned(),
        executables: vec!["/usr/bin/python3".to_owned()],
        trusted: vec!["/usr/bin/python3".to_owned()],
        cmdline: "python3 camera.py --fast".to_owned(),
        uid: 1000,
        euid: 1000,
        cgroup: "/system.slice/camera@1.service/worker".to_owned(),
        ..Process::default()
    }
}

#[test]
fn all_given_conditions_must_hold() {
    let all = Matcher {
        exe: Some("/usr/bin/python3".to_owned()),
        cmdline: Some(Glob::new("*camera.py*")),
        uid: Some(1000),
        unit: Some(Glob::new("camera@*.service")),
        cgroup: Some(Glob::new("/system.slice/*")),
        ..Matcher::default()
    };
    assert!(all.matches(&camera()));
    let others = [
        Process {
            executables: Vec::new(),
            ..camera()
        },
        Process {
            cmdline: "python3 other.py".to_owned(),
            ..camera()
        },
        Process { uid: 1001, ..camera() },
        Process {
            cgroup: "/system.slice/other.service".to_owned(),
            ..camera()
        },
        Process {
            cgroup: "/user.slice/camera@1.service".to_owned(),
            ..camera()
        },
    ];
    for other in others {
        assert!(!all.matches(&other), "{other:?}");
    }
}

#[test]
fn each_condition_on_the_ends_must_hold() {
    let ends = Ends {
        protocol: Protocol::Udp,
        local: "192.0.2.7:40000".parse().unwrap(),
        remote: "198.51.100.1:5005".parse().unwrap(),
    };
    let all = Matcher {
        protocol: Some(Protocol::Udp),
        address: Some("198.51.100.0/24".to_owned().try_into().unwrap()),
        port: Some(5005),
        local_port: Some(40_000),
        ..Matcher::default()
    };
    assert!(all.holds(None, Some(&ends)));
    let other = |text: &str| text.parse().unwrap();
    let others = [
        Ends {
            protocol: Protocol::Tcp,
            ..ends
        },
        Ends {
            local: other("192.0.2.7:40001"),
            ..ends
        },
        Ends {
            remote: other("198.51.101.1:5005"),
            ..ends
        },
        Ends {
            remote: other("198.51.100.1:5006"),
            ..ends
        },
    ];
    for other in others {
        assert!(!all.holds(None, Some(&other)), "{other:?}");
    }
    assert_eq!(
        all.shown(),
        "protocol udp, address 198.51.100.0/24, port 5005, local port 40000"
    );
}

#[test]
fn a_condition_on_an_unknown_part_does_not_hold() {
    let ends = Ends {
        protocol: Protocol::Tcp,
        local: "192.0.2.7:40000".parse().unwrap(),
        remote: "198.51.100.1:443".parse().unwrap(),
    };
    let both = Matcher {
        uid: Some(1000),
        port: Some(443),
        ..Matcher::default()
    };
    assert!(both.holds(Some(&camera()), Some(&ends)));
    assert!(!both.matches(&camera()));
    assert!(!both.holds(None, Some(&ends)));
    assert!(Matcher::default().holds(None, None), "no condition");
}

#[test]
fn a_setuid_program_matches_neither_its_owner_nor_its_caller() {
    let passwd = Process { euid: 0, ..camera() };
    for uid in [0, 1000] {
        assert!(
            !Matcher {
                uid: Some(uid),
                ..Matcher::default()
            }
            .matches(&passwd)
        );
    }
}

#[test]
fn only_a_user_or_an_executable_of_roots_is_trusted() {
    let by_exe = Matcher {
        exe: Some("/usr/bin/python3".to_owned()),
        ..Matcher::default()
    };
    assert!(by_exe.is_trusted(&camera()));
    assert!(!by_exe.is_trusted(&Process {
        trusted: vec!["/home/robot/python3".to_owned()],
        ..camera()
    }));
    assert!(
        Matcher {
            uid: Some(1000),
            ..Matcher::default()
        }
        .is_trusted(&camera())
    );
    assert!(
        !Matcher {
            cmdline: Some(Glob::new("*")),
            ..Matcher::default()
        }
        .is_trusted(&camera())
    );
}

#[test]
fn the_unit_is_the_first_below_the_slices() {
    assert_eq!(
        unit_of("/user.slice/user-1000.slice/session-2.scope"),
        Some("session-2.scope")
    );
    assert_eq!(
        unit_of("/system.slice/camera@1.service/worker"),
        Some("camera@1.service")
    );
    let own = "/user.slice/user-1000.slice/user@1000.service/app.slice/camera.service";
    assert_eq!(
        unit_of(own),
        Some("user@1000.service"),
        "a user's own unit of that name"
    );
    let named_by_a_container = "/system.slice/docker-0123.scope/system.slice/camera@1.service";
    assert_eq!(unit_of(named_by_a_container), Some("docker-0123.scope"));
    assert_eq!(unit_of("/docker/0123/camera@1.service"), None);
    assert_eq!(unit_of("/system.slice/backup.slice/inner"), Some("backup.slice"));
    assert_eq!(unit_of("/docker/0123"), None);
    assert_eq!(unit_of("/"), None);
}
