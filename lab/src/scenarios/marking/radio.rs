// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two simulated radios (mac80211_hwsim): a station and its access point, which supports access categories (WMM). Only
//! in a guest, since the module is machine-wide. Output: two namespaces with a device each, connected; removed when
//! dropped.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::channel::STATION_DEVICE;
use crate::experiment::Run;
use crate::guest;
use crate::namespace::Namespace;
use crate::network::End;
use crate::process::{Process, run as run_command};

pub const ACCESS_POINT_V4: &str = "10.77.3.1";
pub const ACCESS_POINT_V6: &str = "fd77::1";
/// As the module names the second one.
const ACCESS_POINT_DEVICE: &str = "wlan1";
const SSID: &str = "giveway-lab";

/// Fields go in this order: the access point's program before its namespace.
pub struct Radio {
    _hostapd: Process,
    pub station: Namespace,
    pub access_point: Namespace,
}

impl Radio {
    pub fn raise(run: &Run) -> Result<Self> {
        ensure!(guest::is_inside(), "radios are simulated in a guest only");
        // Removes those of an earlier variant.
        drop(run_command(words("modprobe -r mac80211_hwsim")));
        run_command(words("modprobe mac80211_hwsim radios=2"))?;
        run_command(words(&format!("ip link set {} up", super::monitor::DEVICE)))?;
        let (station, access_point) = (Namespace::create("station")?, Namespace::create("access-point")?);
        for (device, place) in [(STATION_DEVICE, &station), (ACCESS_POINT_DEVICE, &access_point)] {
            let phy = std::fs::read_to_string(format!("/sys/class/net/{device}/phy80211/name"));
            let phy = phy.with_context(|| format!("there is no radio {device}"))?;
            run_command(words(&format!("iw phy {} set netns name {}", phy.trim(), place.name())))?;
            place.allow_ipv6(true)?;
        }
        let hostapd = start_hostapd(&access_point, run)?;
        End::new(&access_point, ACCESS_POINT_DEVICE, "", &["10.77.3.1/24"]).set_up(&[])?;
        End::new(&station, STATION_DEVICE, "", &["10.77.3.2/24"]).set_up(&[])?;
        access_point.ip(&format!("address add fd77::1/64 nodad dev {ACCESS_POINT_DEVICE}"))?;
        station.ip(&format!("address add fd77::2/64 nodad dev {STATION_DEVICE}"))?;
        station.run("iw", &format!("dev {STATION_DEVICE} connect -w {SSID}"))?;
        Ok(Self {
            _hostapd: hostapd,
            station,
            access_point,
        })
    }
}

fn words(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Until the access point answers.
fn start_hostapd(at: &Namespace, run: &Run) -> Result<Process> {
    let file = run.file("-hostapd.conf");
    let settings =
        format!("interface={ACCESS_POINT_DEVICE}\ndriver=nl80211\nssid={SSID}\nhw_mode=g\nchannel=1\nwmm_enabled=1\n");
    std::fs::write(&file, settings).with_context(|| format!("cannot write {}", file.display()))?;
    let mut command = at.command("hostapd")?;
    command.arg(&file).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut hostapd = Process::spawn(command)?;
    let said = hostapd.pipes().stdout.take().context("hostapd has no output")?;
    let mut lines = BufReader::new(said).lines();
    let is_up = lines.any(|line| line.is_ok_and(|line| line.contains("AP-ENABLED")));
    ensure!(is_up, "hostapd ended before there was an access point");
    // Its further output has to be read.
    std::thread::spawn(move || lines.for_each(drop));
    Ok(hostapd)
}
