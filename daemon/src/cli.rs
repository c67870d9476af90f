// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user can type. Parsing only; each command is a module of its own.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use giveway_engine::class::{Class, Rates};
use giveway_engine::config::{RateMbit, SchedPolicyName};
use giveway_engine::rate;

use crate::commands::jitter::args::{JitterArgs, LoadArgs};
use crate::commands::top::View;

const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("GIVEWAY_COMMIT"),
    "\nfeatures (BPF objects): ",
    env!("GIVEWAY_OBJECTS")
);

/// Makes this endpoint give way on its own: to what its user does now, and to its neighbours on the same
/// access point. Nothing to change on the router or the far end.
#[derive(Parser)]
#[command(name = "giveway", version, long_version = LONG_VERSION, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the daemon for this network namespace, in the foreground
    Run(RunArgs),
    /// Show what is in force: caps, queue, priorities, rules, sockets with their classes, neighbours
    ///
    /// In the list of sockets `>` is before those that send, and `!` before those of which giveway leaves a setting alone
    /// because another tool has set it or the kernel refused it. `UP/DOWN` is the payload, Mbit/s, that was acknowledged and that
    /// arrived in the last second.
    Status(Json),
    /// Watch what is in force, live: sockets and processes with class, cwnd, cap, RTT and rate; the queue, neighbours, real time
    ///
    /// `h` shows the keys. Nothing is changed, and the daemon is asked once a second at most. Colours are left out where
    /// NO_COLOR is set.
    Top(TopArgs),
    /// Show what was changed on a process, a thread, a socket or the queue, by which rule, on what evidence, and when
    Why(WhyArgs),
    /// Serve one page on the loopback that shows what is in force, live, and /metrics for Prometheus
    Web(WebArgs),
    /// Show what this kernel allows, what is therefore off, and what keeps this machine from answering in time
    Doctor(DoctorArgs),
    /// Write the kernel monitor's log to a file until interrupted
    Record(RecordArgs),
    /// Show what giveway changes on this link: intervals with it and without it, in random order
    ///
    /// What is measured is this machine's own traffic, or with --peer transfers to and from another machine that fill the
    /// link, and what others wait for meanwhile. Without giveway means that the daemon takes back all that it has changed,
    /// for that interval; it is in force again as soon as this command ends, in whatever way.
    Try(TryArgs),
    /// Be the far end of `giveway try` on another machine, until interrupted; whoever reaches its address may fill this link
    Peer(PeerArgs),
    /// Measure how late this machine wakes up, and name what made the worst wake-ups late
    Jitter(JitterArgs),
    /// Put one load on this machine until standard input ends (started by `jitter` itself)
    #[command(hide = true)]
    JitterLoad(LoadArgs),
    /// Draw cwnd, cap, RTT and rate over time from a record
    Plot(PlotArgs),
    /// Set the class of what runs already: a process with all that it starts, a systemd unit, a cgroup, or a flow
    ///
    /// In force within a second, for connections that are open as for new ones, before all rules. Users set it for their own,
    /// as far as [classes] lets them choose. It is kept when giveway is restarted, not when the machine is, and ends with its
    /// target.
    #[command(subcommand)]
    Class(ClassCommand),
    /// Limit the rate of what runs already: a process with all that it starts, a systemd unit, a cgroup, or a flow
    ///
    /// All that one limit is for shares it. In force within a second, for connections that are open as for new ones. A
    /// user's limit is for that user's own, and lifts neither a rule's nor root's. It is kept when giveway is restarted, not
    /// when the machine is, and ends with its target.
    #[command(subcommand)]
    Limit(LimitCommand),
    /// Show the managed links, and set their rates while giveway runs
    ///
    /// What is set is kept when giveway is restarted, not when the machine is, and counts in place of the configuration's.
    #[command(subcommand)]
    Link(LinkCommand),
    /// Take everything back that giveway has changed, until `giveway resume` or for a while
    ///
    /// The daemon goes on watching. A restart of it ends the pause.
    Pause(PauseArgs),
    /// End a pause: everything is in force again
    Resume,
    /// Run a command as traffic of a class, with real-time priority, or both, as far as the configuration lets you
    Exec(ExecArgs),
    /// Say what you are doing now, by its cgroup: your bulk elsewhere counts as background meanwhile (everybody's, if root
    /// says so). Without arguments show what is active, and by whose word
    Active(ActiveArgs),
    /// Name processes that get real-time priority as soon as they are started
    #[command(subcommand)]
    Realtime(RealtimeCommand),
    /// Make a key for a group of devices
    #[command(subcommand)]
    Key(KeyCommand),
    /// Undo everything that giveway has changed in this network namespace, now, and end the daemon
    Revert(RevertArgs),
    /// Read the rules for classes again
    Reload,
    /// Print the configuration file with every key, its documentation and default, or check files
    Config(ConfigArgs),
    /// Wait for the daemon's end and undo what it left behind (started by `run` itself)
    #[command(hide = true)]
    Guardian,
    /// Look up executables that rules name (started by `run` itself)
    #[command(hide = true)]
    LookUp,
}

#[derive(Args)]
pub struct RunArgs {
    /// The configuration (see `giveway config`); else /etc/giveway/giveway.toml, and the defaults where there is no such file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A managed interface, once for each, that of the access point first; those with a default route if absent
    #[arg(long, value_name = "IF")]
    pub interface: Vec<String>,
    /// Decide and explain, but change nothing here; neighbours still hear what this device sends
    #[arg(long)]
    pub dry_run: bool,
    /// A folder with rules for classes, in place of /etc/giveway/rules.d, what units say, and /usr/share/giveway/rules.d;
    /// where there are several, those of the first come first
    #[arg(long, value_name = "FOLDER")]
    pub rules: Vec<PathBuf>,
    /// Where systemd-logind tells of seats and sessions, in place of /run/systemd (for tests)
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub sessions: Option<String>,
}

#[derive(Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: Option<ConfigCommand>,
}

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Say what is wrong with files, each with its line, what in them does nothing, and what they come to on this machine:
    /// links, queues, limits, users, programs. Files in a folder rules.d have only rules. Nothing is changed, and a running
    /// giveway is not asked. Exit code 2: a file is wrong
    Check {
        /// Warnings are errors: exit code 2 where a file is at fault, 1 where this machine lacks something
        #[arg(long)]
        strict: bool,
        /// Only the files: they are for another machine
        #[arg(long)]
        offline: bool,
        /// A configuration, or files of rules
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Args)]
pub struct Json {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct TopArgs {
    /// Print one screen, with the rates of one second, as large as the terminal or as COLUMNS and LINES say
    #[arg(long)]
    pub once: bool,
    /// What is looked at first
    #[arg(long, value_enum, default_value_t)]
    pub view: View,
    /// Only rows with this in any of their texts
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// The title of the column by which rows are sorted
    #[arg(long, value_name = "COLUMN")]
    pub sort: Option<String>,
}

#[derive(Args)]
pub struct DoctorArgs {
    /// Measure what real-time priority and shallow idle states bring here (20 s)
    #[arg(long)]
    pub measure: bool,
    #[command(flatten)]
    pub output: Json,
}

#[derive(Args)]
pub struct WhyArgs {
    /// A process or thread id, a process's name, an executable, an address with or without port, a port, a socket cookie,
    /// an interface, a rule's name, `queue`, or `receive` ([receive] and chains); everything if absent
    #[arg(value_name = "PID|TID|NAME|ADDRESS|PORT|RULE")]
    pub subject: Option<String>,
    #[command(flatten)]
    pub output: Json,
}

#[derive(Args)]
pub struct WebArgs {
    /// Where to serve
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9871")]
    pub listen: SocketAddr,
    /// Serve this user too, as `prometheus`; else only you and root are
    #[arg(long = "allow", value_name = "USER")]
    pub allowed: Vec<String>,
    /// Serve whoever connects, other machines included if --listen lets them: they see every user's connections
    #[arg(long, conflicts_with = "allowed")]
    pub anyone: bool,
    /// Be known by this name too; else only by addresses
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
}

#[derive(Args)]
pub struct TryArgs {
    /// Fill the link to and from `giveway peer` there; else this machine's own traffic is what is measured
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub peer: Option<SocketAddr>,
    /// The transfers say that they are background (DSCP LE), with giveway and without it
    #[arg(long, requires = "peer")]
    pub background: bool,
    /// Transfers to the peer, and as many from it
    #[arg(long, value_name = "NUMBER", default_value_t = 2, requires = "peer", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub streams: u16,
    /// Messages to the peer that are answered later than this count as late
    #[arg(long, value_name = "MS", default_value_t = 100, requires = "peer", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub deadline_ms: u64,
    /// What is measured each time
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = within::<0, 100>)]
    pub interval: f64,
    /// What is not, after each change
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = within::<0, 30>)]
    pub settle: f64,
    /// The change that is to be found with 95%, if it is there
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = within::<0, 1000>)]
    pub effect: f64,
    /// At most, the dry run included
    #[arg(long, default_value_t = 30.0, value_parser = within::<0, 10_000>)]
    pub minutes: f64,
    /// So many pairs, without a dry run that sizes the trial
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(20..))]
    pub pairs: Option<u16>,
    /// By which orders are drawn; another one each time if absent
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Draw a picture
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print one JSON object with every interval instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct PeerArgs {
    /// Where to listen: an address of the link that is to be tried
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
}

#[derive(Args)]
pub struct RecordArgs {
    /// Where to write; `-` is standard output
    pub file: PathBuf,
}

#[derive(Args)]
pub struct PlotArgs {
    /// A file that `giveway record` wrote, here or on another machine
    pub file: PathBuf,
    /// The SVG to write
    #[arg(short, long, value_name = "SVG")]
    pub output: PathBuf,
}

#[derive(Subcommand)]
pub enum ClassCommand {
    /// From now on it has this class
    Set {
        #[command(flatten)]
        target: TargetArg,
        #[arg(value_parser = classes())]
        class: Class,
        #[command(flatten)]
        output: Json,
    },
    /// Take it back: rules and evidence decide again
    Clear {
        #[command(flatten)]
        target: TargetArg,
        #[command(flatten)]
        output: Json,
    },
    /// Show what is set, and by whom
    List(Json),
}

#[derive(Subcommand)]
pub enum LimitCommand {
    /// Limit what everything in the target sends and receives together
    #[command(mut_group("RateArgs", |rates| rates.required(true)))]
    Set {
        #[command(flatten)]
        target: TargetArg,
        #[command(flatten)]
        rates: RateArgs,
        #[command(flatten)]
        output: Json,
    },
    /// Take it back: limits of rules and of `giveway exec` hold again
    Clear {
        #[command(flatten)]
        target: TargetArg,
        #[command(flatten)]
        output: Json,
    },
    /// Show each with who set it, and what its queues let through in the last second
    List(Json),
}

#[derive(Args)]
pub struct TargetArg {
    /// A process by its pid (with all that it starts and has started), a systemd unit (steam.scope), a cgroup
    /// (/user.slice/...), or a flow by its remote end and, where it matters, its local port (192.0.2.7:873,
    /// [2001:db8::7]:873:40000)
    pub target: String,
}

/// The limits of a command, or of what runs already: all of it together has each.
#[derive(Args)]
pub struct RateArgs {
    /// Receive at most so much: 2.5mbit, 800kbit, 1gbit
    #[arg(long, value_name = "RATE", value_parser = rate::parse)]
    pub down: Option<u64>,
    /// Send at most so much
    #[arg(long, value_name = "RATE", value_parser = rate::parse)]
    pub up: Option<u64>,
    /// The same for both, each direction for itself; `--down` and `--up` override it
    #[arg(long, value_name = "RATE", value_parser = rate::parse)]
    pub rate_limit: Option<u64>,
}

#[derive(Subcommand)]
pub enum LinkCommand {
    /// Show each managed link with its rate, who says it, and its queue
    Show(Json),
    /// Set a link's rate
    Set {
        /// The interface's name
        name: String,
        #[command(flatten)]
        rates: LinkRates,
    },
    /// Go back to what the configuration says
    Clear {
        /// The interface's name
        name: String,
    },
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct LinkRates {
    /// What it can send, with a unit (9.5mbit), or `auto`: estimated
    #[arg(long, value_name = "RATE|auto", value_parser = link_rate)]
    pub up: Option<RateMbit>,
    /// What arrives by it at most, with a unit (50mbit): bulk and background downloads give way within it
    #[arg(long, value_name = "RATE", value_parser = download_rate)]
    pub down: Option<f64>,
}

#[derive(Args)]
pub struct PauseArgs {
    /// With a unit: 90s, 30m, 1h, 2d; until `giveway resume` if absent
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub for_s: Option<u64>,
}

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Make a new key; an existing file keeps its newest key as the second one, for the change
    New {
        #[arg(default_value = "/etc/giveway/group.key")]
        file: PathBuf,
    },
}

#[derive(Args)]
pub struct RevertArgs {
    /// Only say what would be undone
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Json,
}

#[derive(Args)]
pub struct ActiveArgs {
    /// A path in cgroup v2, as /user.slice/user-1000.slice/session-2.scope, or a systemd unit that runs; users name their own.
    /// It takes the place of what you named before
    #[arg(value_name = "CGROUP|UNIT")]
    pub subject: Option<String>,
    /// Take back what you named
    #[arg(long, conflicts_with = "subject")]
    pub none: bool,
    /// For so long, and no longer than the cgroup and the daemon last
    #[arg(long = "for", value_name = "SECONDS", requires = "subject", value_parser = clap::value_parser!(u32).range(1..))]
    pub for_s: Option<u32>,
    #[command(flatten)]
    pub output: Json,
}

#[derive(Args)]
pub struct ExecArgs {
    /// As traffic of this class, with everything that it starts; users may choose what [classes] lets them
    #[arg(long, value_parser = classes())]
    pub class: Option<Class>,
    #[command(flatten)]
    pub rates: RateArgs,
    /// With this real-time priority (1 to 48)
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u32).range(1..=48))]
    pub realtime: Option<u32>,
    /// How equals take turns: `fifo` until they pause, `rr` by time slices
    #[arg(long, value_parser = policies(&["fifo", "rr"]), default_value = "fifo", requires = "realtime")]
    pub policy: SchedPolicyName,
    /// Only on these CPUs, e.g. 0,2
    #[arg(long, value_delimiter = ',', requires = "realtime")]
    pub cpus: Vec<u32>,
    /// Do not run the command without what was asked for it (exit code 125). Known at its start, and so refused, are: no
    /// daemon, a dry run, a pause, for `background` and `stream` a managed link without a queue of giveway's, for `--down` one
    /// with tc filters or an nftables chain at its ingress, and another interface with routes that is not
    /// managed. What comes to light later (a tunnel, another network namespace) `giveway status` and `giveway why` say
    #[arg(long)]
    pub require: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

fn link_rate(text: &str) -> Result<RateMbit, String> {
    match text {
        "auto" => Ok(RateMbit::Found),
        _ => rate::parse(text).map(|bytes_per_s| RateMbit::Fixed(rate::mbit(bytes_per_s))),
    }
}

fn download_rate(text: &str) -> Result<f64, String> {
    rate::parse(text).map(rate::mbit)
}

/// Seconds, of a number and its unit.
fn time(text: &str) -> Result<u64, String> {
    const UNITS: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    const MOST_S: u64 = 30 * 86_400;
    let wrong = || format!("`{text}` is no time: write a number and its unit, as 90s, 30m, 1h or 2d");
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let (_, seconds) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let number: u64 = text.trim_end_matches(unit).parse().map_err(|_| wrong())?;
    let time = number.checked_mul(seconds).filter(|time| (1..=MOST_S).contains(time));
    time.ok_or_else(|| "a pause is for 1s to 30d".to_owned())
}

impl RateArgs {
    pub fn rates(&self) -> Rates {
        Rates {
            up: self.up.or(self.rate_limit),
            down: self.down.or(self.rate_limit),
        }
    }
}

/// Above the one and no more than the other.
fn within<const ABOVE: i32, const MOST: i32>(text: &str) -> Result<f64, String> {
    let is_within = |number: &f64| *number > f64::from(ABOVE) && *number <= f64::from(MOST);
    let number: Option<f64> = text.parse().ok().filter(is_within);
    number.ok_or_else(|| format!("it is a number above {ABOVE}, {MOST} at most"))
}

fn classes() -> impl TypedValueParser<Value = Class> {
    PossibleValuesParser::new(Class::ALL.map(Class::name)).map(|name| {
        let named = |class: &Class| class.name() == name;
        Class::ALL.into_iter().find(named).unwrap_or_default()
    })
}

/// The scheduling policies by their names in the configuration.
fn policies(names: &'static [&'static str]) -> impl TypedValueParser<Value = SchedPolicyName> {
    PossibleValuesParser::new(names).map(|name| match name.as_str() {
        "rr" => SchedPolicyName::Rr,
        "deadline" => SchedPolicyName::Deadline,
        _ => SchedPolicyName::Fifo,
    })
}

#[derive(Subcommand)]
pub enum RealtimeCommand {
    /// Give it to processes of this kind, also to those that run already, until the daemon ends
    Add(RealtimeRuleArgs),
    /// Remove a rule: its processes lose the priority
    Remove {
        /// As `list` shows it
        name: String,
    },
    /// Show the rules and the processes that have it
    List(Json),
}

#[derive(Args)]
pub struct RealtimeRuleArgs {
    /// The executable; root's, unless --user is given
    #[arg(long, value_name = "PATH", required_unless_present = "user")]
    pub exe: Option<PathBuf>,
    /// A pattern (* and ?) for the arguments with blanks between them
    #[arg(long, value_name = "PATTERN")]
    pub cmdline: Option<String>,
    /// Only processes of this user
    #[arg(long)]
    pub user: Option<String>,
    /// A pattern for the systemd unit
    #[arg(long, value_name = "PATTERN")]
    pub unit: Option<String>,
    /// A pattern for the cgroup's path
    #[arg(long, value_name = "PATTERN")]
    pub cgroup: Option<String>,
    #[arg(long, value_parser = policies(&["fifo", "rr", "deadline"]), default_value = "fifo")]
    pub policy: SchedPolicyName,
    /// For fifo and rr (1 to 48)
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=48))]
    pub priority: u32,
    /// For the deadline policy: so much CPU time ...
    #[arg(long, value_name = "US")]
    pub runtime_us: Option<u32>,
    /// ... within so long of each period's start; without it the period
    #[arg(long, value_name = "US")]
    pub deadline_us: Option<u32>,
    /// The deadline policy's period
    #[arg(long, value_name = "US")]
    pub period_us: Option<u32>,
    /// Only on these CPUs, e.g. 0,2
    #[arg(long, value_delimiter = ',')]
    pub cpus: Vec<u32>,
    /// Of one CPU, for all processes of this rule together
    #[arg(long)]
    pub budget_percent: Option<u32>,
    /// Threads that have it at once
    #[arg(long)]
    pub max_tasks: Option<u32>,
    /// What `remove` and `why` call it; the executable's path if absent
    #[arg(long)]
    pub name: Option<String>,
}
