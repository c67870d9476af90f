// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a configuration comes to on this machine, as `giveway run` would find it: the links that it manages, what would
//! serve on each, and what here is missing. It needs no daemon and disturbs none: it loads nothing, takes no lock, and
//! changes nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use giveway_engine::class::Rules;
use giveway_engine::config::{BackendName, Config, LocalTraffic};
use giveway_engine::downlink::PART;
use giveway_engine::queue::links::{LinkView, Links};
use giveway_engine::queue::{Backend, Backends, Uplink};
use nix::net::if_::if_nametoindex;
use schemars::JsonSchema;
use serde::Serialize;

use crate::actuate::filters;
use crate::actuate::queue::is_ours;
use crate::interface::{Choice, ManagedLinks};
use crate::kernel::libbpf_log::one_line;
use crate::kernel::netlink::Netlink;
use crate::kernel::types::Types;
use crate::kernel::{check_requirements, uplink, way_in};
use crate::key::KeyFile;
use crate::rules::UNIT_FOLDERS;
use crate::run::{missing_group, priority_engine};

const CGROUPS: &str = "/sys/fs/cgroup";

/// What is told, and which of it does not hold here.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct MachineCheck {
    pub lines: Vec<String>,
    pub missing: Vec<String>,
}

impl MachineCheck {
    /// With these rules.
    pub fn run(config: &Config, rules: &Rules) -> Self {
        let mut this = Self::default();
        if let Err(error) = check_requirements() {
            this.missing.push(format!("giveway cannot start here: {error:#}"));
        }
        let named: Vec<String> = config.interface.iter().chain(&config.interfaces).cloned().collect();
        let choice = if named.is_empty() {
            Choice::DefaultRoute
        } else {
            Choice::Named(named.clone())
        };
        let absent = named.iter().filter(|name| if_nametoindex(name.as_str()).is_err());
        this.missing
            .extend(absent.map(|name| format!("interface `{name}` does not exist; giveway waits for it")));
        if named.iter().any(|name| name == "lo") {
            this.missing
                .push("giveway refuses to start: `lo` is never managed".to_owned());
        }
        match choice.find() {
            Ok(found) => this.links(config, rules, &choice, &found),
            Err(error) => this.missing.push(format!("cannot list the links: {error:#}")),
        }
        this.names(config);
        this
    }

    fn links(&mut self, config: &Config, rules: &Rules, choice: &Choice, found: &ManagedLinks) {
        if found.links.is_empty() {
            self.missing.push(format!("no link is managed: {choice}"));
        }
        self.missing.extend(choice.unmanaged(&config.uplink, found));
        let mut netlink = match Netlink::open() {
            Ok(netlink) => netlink,
            Err(error) => return self.missing.push(format!("{error:#}")),
        };
        let mut uplinks = Vec::new();
        for (ifindex, name) in &found.links {
            match uplink::read(&mut netlink, *ifindex, name, is_ours) {
                Ok(uplink) => uplinks.push(uplink),
                Err(error) => self.missing.push(format!("{name}: {error:#}")),
            }
        }
        self.missing.extend(
            uplinks
                .first()
                .into_iter()
                .flat_map(|first| idle_rates_of_link(config, &first.name)),
        );
        let is_managed = |interface: &str| found.links.iter().any(|(_, name)| name == interface);
        let unmanaged = rules
            .by_interface()
            .filter(|(_, interface)| !is_managed(interface) && if_nametoindex(*interface).is_ok());
        self.missing.extend(unmanaged.map(|(rule, interface)| {
            format!("{rule}: neither class nor limit is enforced: {interface} is not managed")
        }));
        let limits = rules.limits();
        let orders = config.link.download_rate_mbit.is_some()
            || config.uplink.iter().any(|uplink| uplink.download_rate_mbit.is_some());
        if orders || limits.iter().any(|limit| limit.down().is_some()) {
            self.missing.extend(bypassed(&mut netlink, &found.links));
        }
        if limits.iter().any(|limit| limit.up().is_some()) {
            self.missing.extend(decided_before(&mut netlink, &found.links));
        }
        for link in views(config, rules, uplinks) {
            self.link(config, &link);
        }
        if config.queue.backend == BackendName::Bpf
            && let Err(reason) = Types::load().bpf_qdisc()
        {
            self.missing.push(format!(
                "[queue] backend = \"bpf\" is not available: {}",
                one_line(&reason)
            ));
        }
    }

    /// What would be installed on it, and what would do nothing there.
    fn link(&mut self, config: &Config, link: &LinkView) {
        let name = &link.interface;
        let plan = link
            .queue
            .installed
            .as_ref()
            .filter(|plan| plan.backend != Backend::None);
        let would = match plan {
            Some(plan) => plan.shown(),
            None if link.queue.waits => "no queue until there is something to order".to_owned(),
            None => "no giveway queue".to_owned(),
        };
        self.lines.push(format!("{name}: {would}: {}", link.queue.reason));
        let takes_out = link.queue.waits || plan.is_some_and(|plan| plan.backend == Backend::Htb);
        if let Some(mbit) = link.download_rate_mbit {
            self.lines.push(format!(
                "{name}: bulk and background downloads yield, within {:.0}% of {mbit} Mbit/s",
                PART * 100.0
            ));
        }
        if spares_local(config, name) && !takes_out && link.download_rate_mbit.is_none() {
            self.missing.push(format!(
                "local = \"unlimited\" has no effect on {name}: it needs htb with a known rate (set rate_mbit; {})",
                link.queue.reason
            ));
        }
        let paces = plan.is_some_and(|plan| plan.tuning.rate_bytes_per_s.is_some());
        let is_promised = !config.deadline.is_empty() || !config.chain.is_empty();
        if is_promised && !paces {
            self.missing.push(format!(
                "[[deadline]] guarantees nothing on {name}: it needs a queue with a known rate ({})",
                link.queue.reason
            ));
        }
    }

    /// Users, groups, and the key.
    fn names(&mut self, config: &Config) {
        self.missing
            .extend(priority_engine(config, true).err().map(|error| format!("{error:#}")));
        if let Some(name) = missing_group(config) {
            self.missing.push(format!(
                "[control] group = \"{name}\": no such group, so only root can read the status"
            ));
        }
        if let Some(file) = &config.group.key_file
            && let Err(error) = KeyFile::new(file).read()
        {
            self.missing.push(format!("giveway cannot start here: {error:#}"));
        }
    }
}

/// Whether what stays in this link's own subnets is to have no part in its rate.
fn spares_local(config: &Config, name: &str) -> bool {
    let own = config.uplink.iter().find(|own| own.interface.as_deref() == Some(name));
    own.and_then(|own| own.local).unwrap_or(config.link.local) == LocalTraffic::Unlimited
}

/// What would never see what arrives and is limited, so that nothing is limited there.
fn bypassed(netlink: &mut Netlink, links: &[(u32, String)]) -> Vec<String> {
    let chains = way_in::filtered().unwrap_or_default();
    let mut all = Vec::new();
    for (ifindex, name) in links {
        if let Ok(Some(hindrance)) = way_in::hindrance(netlink, *ifindex, name, &chains) {
            all.push(format!(
                "download limits of rules are not enforced on {name}: {hindrance}"
            ));
        }
    }
    all
}

/// By filters at their egress.
fn decided_before(netlink: &mut Netlink, links: &[(u32, String)]) -> Vec<String> {
    let with_clsact = way_in::with_clsact(netlink).unwrap_or_default();
    let hindered = links.iter().filter_map(|(ifindex, name)| {
        let hindrance = filters::hindrance(netlink, &with_clsact, *ifindex, name)?;
        Some(format!(
            "upload limits of rules are not enforced on {name}: {hindrance}"
        ))
    });
    hindered.collect()
}

/// What the queues of these links would be, by the engine that decides it.
fn views(config: &Config, rules: &Rules, uplinks: Vec<Uplink>) -> Vec<LinkView> {
    let backends = Backends {
        bpf: Types::load().bpf_qdisc().map_err(|error| one_line(&error)),
        htb: Ok(()),
        marks: Ok(()),
        dry_run: true,
    };
    let first = uplinks.first().map(|uplink| uplink.ifindex);
    let mut links = Links::new(config, backends);
    links.follow(!rules.limits().is_empty(), &rules.packet_rules());
    let (_, asked) = links.observe(Duration::ZERO, uplinks, first);
    for request in asked {
        links.conclude(Duration::ZERO, request.ifindex, Ok(()));
    }
    links.views(Duration::ZERO)
}

/// Rates of `[link]` that do not count for the link that they would be for.
fn idle_rates_of_link(config: &Config, first: &str) -> Vec<String> {
    let Some(own) = config.uplink.iter().find(|own| own.interface.as_deref() == Some(first)) else {
        return Vec::new();
    };
    let keys = [
        ("rate_mbit", config.link.rate_mbit.is_some(), own.rate_mbit.is_some()),
        (
            "download_rate_mbit",
            config.link.download_rate_mbit.is_some(),
            own.download_rate_mbit.is_some(),
        ),
    ];
    let idle = keys.into_iter().filter(|(_, is_given, is_own)| *is_given && !is_own);
    idle.map(|(key, ..)| format!("[link] {key} has no effect on {first}, which has an [[uplink]]: set it there"))
        .collect()
}

/// Why no process of a unit of this name can be here now: it has no file, and does not run.
pub fn no_unit(unit: &str) -> Option<String> {
    let named = unit.strip_suffix(".service")?;
    let template = named
        .split_once('@')
        .map(|(template, _)| format!("{template}@.service"));
    let is_known = UNIT_FOLDERS.iter().any(|folder| {
        let has = |name: &str| fs::symlink_metadata(Path::new(folder).join(name)).is_ok();
        has(unit) || template.as_deref().is_some_and(has)
    });
    let runs = || fs::exists(Path::new(CGROUPS).join("system.slice").join(unit)).unwrap_or_default();
    (!is_known && !runs()).then(|| format!("unit {unit} does not exist"))
}
