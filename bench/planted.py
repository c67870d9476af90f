#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Plants changes of behaviour and replays the corpus after each: each has to turn a recording red.
#   planted.py [--tree WORKTREE] [--commit COMMIT] [--corpus FOLDER] [--out FILE] [--list] [PART-OF-A-NAME ...]
# All are planted at once into a copy of the commit (below /tmp/giveway-planted; no worktree is touched), each behind
# `crate::planted(NUMBER)`; GIVEWAY_PLANTED=NUMBER turns one on. So one build does for all, and each replay takes a second.
# A text that is not there exactly once, or a build that fails, is an error: nothing is skipped silently. Files move: a text
# that is not in the file named here is looked for in all of engine/src, by itself.
import argparse, glob, os, re, shutil, subprocess, sys, time
E = 'engine/src/'
SEC, MS, US = ('Duration::from_secs(%s)', 'Duration::from_millis(%s)', 'Duration::from_micros(%s)')
def const(subject, what, file, name, type_, old, new): return dict(subject=subject, what=what, file=file, name=name, type=type_, old=old, new=new)
def code(subject, what, file, old, new): return dict(subject=subject, what=what, file=file, name=None, old=old, new=new)
def time_(subject, what, file, name, unit, old, new): return const(subject, what, file, name, 'Duration', unit % old, unit % new)
P = [
 code('model', 'a limit of what is received counts where one of what is sent is', 'model/class.rs', 'self.down.map(|_| number)', 'self.up.map(|_| number)'),
 code('model', 'an IPv4 header is as long as one of IPv6', 'model/link.rs', 'if self.ipv4.is_some() { 20 } else { 40 }', '40'),
 code('config', 'report_interval_ms by default', 'config/sections.rs', 'report_interval_ms: u32 = @500@,', '600'),
 code('config', 'realtime_percent by default', 'config/sections.rs', 'realtime_percent: u32 = @80@,', '70'),
 code('matcher', 'a unit is matched by its cgroup', 'matcher.rs', 'pattern.matches(unit_of(&process.cgroup).unwrap_or_default())', 'pattern.matches(&process.cgroup)'),
 code('matcher', 'the port at the other end is the own one', 'matcher.rs', '*port == ends.remote.port()', '*port == ends.local.port()'),
 code('matcher', 'who may write the executable is not asked', 'matcher.rs', 'self.uid.is_some() || self.exe.as_ref().is_some_and(|exe| process.trusted.contains(exe))', 'true'),
 code('model', 'a clamp is set in no other state than Open', 'model/socket.rs', 'matches!(self, Self::Open | Self::Disorder)', 'matches!(self, Self::Open)'),
 const('sockets', 'sending after so many passes', 'sockets/flows.rs', 'SENDING_AFTER_PASSES', 'u32', '2', '3'),
 const('sockets', 'step of a cap', 'sockets/setting.rs', 'STEP', '(u32, u32)', '(5, 4)', '(3, 2)'),
 const('sockets', 'receives in bulk from so many bytes on', 'sockets/receiving.rs', 'BULK_BYTES', 'u64', '64 * 1024', '128 * 1024'),
 const('sockets', 'owners asked for at once', 'sockets/owners.rs', 'UNKNOWN_AT_ONCE', 'usize', '24', '2'),
 code('class', 'the idle I/O class is no evidence', 'class/evidence.rs', 'holds: |seen| @idleness(seen).io_idle@,', 'false'),
 code('class', "a user gets out of a rule's limit", 'class.rs', 'if uid == ROOT && is_smaller { of_command } else { of_rule }', 'if is_smaller { of_command } else { of_rule }'),
 time_('class', 'changes of the focus are taken in so often', 'class/flows.rs', 'ACTIVE_GAP', MS, 200, 900),
 const('share', 'floor of a cap', 'share.rs', 'FLOOR_SEGMENTS', 'u32', '4', '5'),
 const('share', 'keeps so much of a rate that collapses', 'share/found/control.rs', 'KEEPS', 'f64', '0.8', '0.9'),
 const('share', 'lately is a mean over so long', 'share/found/plain.rs', 'LATELY_S', 'f64', '1.5', '2.0'),
 const('share', 'room that a light one gets', 'share/found/group.rs', 'SPARE', 'f64', '1.25', '1.5'),
 const('share', 'margin of the fixed policy', 'share/fixed.rs', 'MARGIN_LIMIT', 'f64', '0.2', '0.05'),
 time_('background', 'congestion controls are changed so often', 'background.rs', 'GAP', MS, 500, 900),
 const('background', 'processes reniced at once', 'background/nice.rs', 'AT_ONCE', 'usize', '64', '1'),
 const('queue', 'trickle of the background', 'queue.rs', 'TRICKLE_SHARE', 'u64', '200', '100'),
 const('queue', 'least change of a measured rate', 'queue.rs', 'LEAST_CHANGE', 'f64', '0.01', '0.2'),
 time_('queue', 'a link that has gone keeps its queue for so long', 'queue/links.rs', 'LINGERS', SEC, 10, 1),
 time_('queue', 'a link that was there for less comes and goes', 'queue/links.rs', 'STEADY', SEC, 10, 1),
 time_('queue', 'a demand stays', 'queue/demand.rs', 'STAYS', SEC, 60, 6),
 const('queue', 'returns to an uplink that others take', 'queue/contest.rs', 'MOST_RETURNS', 'usize', '3', '1'),
 const('queue', 'a measured rate gives way to', 'queue/measured.rs', 'GIVES_WAY', 'f64', '0.95', '0.9'),
 const('downlink', 'part of the rate of what arrives', 'downlink/order.rs', 'PART', 'f64', '0.8', '0.85'),
 time_('downlink', 'a detour stands for so long', 'downlink.rs', 'STANDS', SEC, 60, 0),
 time_('priority', 'what a change costs a chain', 'priority/chain.rs', 'COST', US, 60, 600),
 const('priority', 'threads of chains known at once', 'priority/chain.rs', 'THREADS_KEPT', 'usize', '128', '64'),
 const('priority', 'a budget is halved so often', 'priority/budget.rs', 'MOST_HALVED', 'u32', '4', '1'),
 const('priority', 'rules of a user', 'priority/rules.rs', 'RULES_OF_A_USER', 'usize', '32', '31'),
 time_('priority', 'the starvation detector is believed', 'priority/starvation.rs', 'SOONEST', MS, 200, 300),
 const('priority', 'share of NAPI threads', 'priority/napi.rs', 'SHARE_PERCENT', 'u32', '80', '60'),
 const('priority', 'threads that borrow a priority', 'priority/lending.rs', 'MOST_BORROWERS', 'u32', '64', '100'),
 code('priority', 'nothing is given again after a pause', 'priority/pause.rs', 'self.give_again(now, id)', '{ let _ = (now, id); }'),
 const('peers', 'a peer is gone after so many silent intervals', 'peers/session.rs', 'SILENT_INTERVALS', 'u32', '6', '4'),
 const('peers', 'asked after so many intervals', 'peers/session.rs', 'ASKED_INTERVALS', 'u32', '4', '3'),
 const('peers', 'idle ones report so many times less often', 'peers/pace.rs', 'IDLE_FACTOR', 'u32', '10', '12'),
 time_('network', 'decisions are at least so far apart', 'network.rs', 'DECISION_GAP', MS, 10, 50),
 code('network', 'refusals are not recorded', 'network/routes.rs', 'self.actions.push(Action::Record(What::Refusal(refusal)))', 'drop(refusal)'),
 time_('network', 'short of a limit for so long', 'enforcement/shortfalls.rs', 'SHORT_FOR', MS, 300, '2_000'),
 const('network', 'processes read at once', 'class/processes.rs', 'READ_AT_ONCE', 'usize', '64', '1'),
 time_('queue', 'a queue that stays is taken for that of others', 'queue/measured.rs', 'GIVES_WAY_FOR', SEC, 3, 1),
 time_('queue', 'how long it then does without a rate', 'queue/measured.rs', 'WITHDRAWS_FOR', SEC, 60, 30),
 const('sockets', 'another tool is believed after so many passes', 'sockets/setting.rs', 'FOREIGN_AFTER_PASSES', 'u32', '2', '3'),
 time_('sockets', 'a flow has stopped after', 'sockets/flows.rs', 'STOPPED_AFTER', SEC, 1, 2),
 time_('downlink', 'what arrives is forgotten after', 'downlink/order.rs', 'FORGETS', MS, 500, 800),
 time_('peers', 'answers are so far apart', 'peers/session.rs', 'ANSWER_GAP', MS, 50, 100),
 const('peers', 'echoes of a new one', 'peers/session.rs', 'FIRST_ECHOES', 'u8', '2', '1'),
 time_('priority', 'nothing is given for so long after a starvation', 'priority.rs', 'HOLD', SEC, 10, 5),
 time_('priority', 'an overrun is forgotten after', 'priority/budget.rs', 'FORGOTTEN', SEC, 60, 30),
 time_('network', 'a try again comes so soon', 'back_off.rs', 'SHORTEST', SEC, 1, 2),
]
SRC, TARGET = '/tmp/giveway-planted/src', '/tmp/giveway-planted/target'
args = argparse.ArgumentParser()
args.add_argument('--tree', default='.')
args.add_argument('--commit', default='HEAD')
args.add_argument('--corpus', help="recordings of this folder instead of the commit's")
args.add_argument('--out', default='planted.txt')
args.add_argument('--list', action='store_true', help='only whether each text is there')
args.add_argument('--no-build', action='store_true', help='the binary of the last time')
args.add_argument('--worktree', action='store_true', help='what is not committed as well')
args.add_argument('names', nargs='*')
args = args.parse_args()

def run(command): return subprocess.run(command, shell=True, capture_output=True, text=True)
def read(path): return open(path).read()
def write(path, text):
    with open(path, 'w') as f: f.write(text)
def sources(): return [f for f in glob.glob(f'{SRC}/{E}**/*.rs', recursive=True)]

def find(file, text):
    """The file that has it, which may have moved."""
    path = f'{SRC}/{E}{file}'
    hits = [path] if os.path.exists(path) and text in read(path) else [f for f in sources() if text in read(f)]
    if len(hits) != 1: raise LookupError(f'in {len(hits)} files: {text}')
    if read(hits[0]).count(text) != 1: raise LookupError(f'{read(hits[0]).count(text)} times in {hits[0]}: {text}')
    return hits[0]

def used(text, name):
    """Every use of the constant becomes a call."""
    out = []
    in_use = False
    for line in text.split('\n'):
        code, comment = (line, '') if '//' not in line else (line[:line.index('//')], line[line.index('//'):])
        in_use = in_use or re.match(r'\s*(pub(\([^)]*\))? )?use ', code) is not None
        if in_use:
            code = re.sub(r'::%s;' % name, '::{%s, %s_};' % (name, name), code)
            code = re.sub(r'(?<=[{, ])%s\b(?=[},])(?!, %s_)' % (name, name), f'{name}, {name}_', code)
        else:
            code = re.sub(r'(?<!\{)\b%s\b(?!\()|(?<=\{)%s\b(?!\}|\()' % (name, name), name + '_()', code)
        if in_use and ';' in code: in_use = False
        out.append(code + comment)
    return '\n'.join(out)

def plant(number, p):
    if p['name'] is None:
        before, old, after = p['old'].split('@') if '@' in p['old'] else ('', p['old'], '')
        path = find(p['file'], before + old + after)
        new = f'{before}(if crate::planted({number}) {{ {p["new"]} }} else {{ {old} }}){after}'
        if not args.list: write(path, read(path).replace(before + old + after, new, 1))
        return path
    name = p['name']
    text = f'const {name}: {p["type"]} = {p["old"]};'
    path = find(p['file'], text)
    s = read(path)
    seen = re.search(r'(pub(\([^)]*\))? )?' + re.escape(text), s)
    if args.list: return path
    # The constant stays for tests, which are not run.
    function = (f'#[allow(dead_code)]\n{seen[0]}\n#[allow(non_snake_case)]\n{seen[1] or ""}fn {name}@() -> {p["type"]} {{\n'
                f'    if crate::planted({number}) {{ {p["new"]} }} else {{ {p["old"]} }}\n}}')
    write(path, used(s[:seen.start()], name) + function.replace('@', '_') + used(s[seen.end():], name))
    # (A name that two files have is planted in its own file alone.)
    if sum(f'const {name}:' in read(f) for f in sources()) == 1:
        own = re.compile(r'const %s:' % name)
        for f in sources():
            t = read(f)
            if f != path and '/tests' not in f and re.search(r'\b%s\b(?!_)' % name, t) and not own.search(t): write(f, used(t, name))
    return path

def replay(binary, number):
    env = dict(os.environ, GIVEWAY_PLANTED=str(number))
    env.pop('GIVEWAY_CORPUS', None)
    if args.corpus: env['GIVEWAY_CORPUS'] = args.corpus
    r = subprocess.run(['nice', binary, 'corpus::replay'], cwd=f'{SRC}/engine', env=env, capture_output=True, text=True)
    out = r.stdout + r.stderr
    red = sorted(set(re.findall(r'^([\w.-]+)\.inputs\.gz: ', out, re.M)))
    if 'test result: FAILED' in out:
        return 'red', red or ['(panicked) ' + ' '.join(re.findall(r'panicked at [^\n]*\n([^\n]*)', out))[:90]]
    if 'test result: ok. 1 passed' in out: return 'GREEN', []
    return 'UNKNOWN', out.strip().split('\n')[-2:]

def of(p): return f' ({p["name"]}: {p["old"]} -> {p["new"]})' if p['name'] else ''
rows, bad = [], 0
def say(row):
    rows.append(row); print(row, flush=True); write(args.out, '\n'.join(rows) + '\n')
commit = run(f'git -C {args.tree} rev-parse --short {args.commit}').stdout.strip()
numbered = list(enumerate(P, 1))
wanted = [(n, p) for n, p in numbered if not args.names or any(x in f'{p["subject"]}: {p["what"]}' for x in args.names)]
binary = f'{TARGET}/planted'
if not args.no_build:
    fresh = SRC + '.fresh'
    shutil.rmtree(fresh, ignore_errors=True); os.makedirs(fresh)
    made = f'git -C {args.tree} archive {args.commit} | tar -x -C {fresh}'
    if args.worktree: made = f'cd {args.tree} && git ls-files -co --exclude-standard | xargs -d "\\n" ls -d 2>/dev/null | tar -c -T - | tar -x -C {fresh}'
    r = run(f'{made} && rsync -rlc --delete {fresh}/ {SRC}/')
    if r.returncode: sys.exit(r.stderr)
    missing = []
    for n, p in numbered:
        try: p['at'] = plant(n, p)
        except LookupError as problem: missing.append(f'{p["subject"]}: {p["what"]}: {problem}')
    if missing: sys.exit('\n'.join(missing))
    if args.list: print(f'{len(P)} texts found'); sys.exit()
    lib = f'{SRC}/{E}lib.rs'
    write(lib, read(lib) + '''
#[allow(clippy::all)]
pub fn planted(number: usize) -> bool {
    static ON: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *ON.get_or_init(|| std::env::var("GIVEWAY_PLANTED").ok().and_then(|n| n.parse().ok()).unwrap_or(0)) == number
}
''')
    r = run(f'cd {SRC} && CARGO_TARGET_DIR={TARGET} CARGO_PROFILE_TESTS_DEBUG=0 cargo test --profile tests '
            "--config 'profile.tests.package.giveway-engine.opt-level=1' -p giveway-engine --lib --no-run 2>&1")
    built = re.search(r'Executable .*\((.*)\)', r.stdout)
    if not built: sys.exit('\n'.join(re.findall(r'^error.*(?:\n.+)*', r.stdout, re.M)))
    path = built[1] if built[1].startswith('/') else f'{SRC}/{built[1]}'
    shutil.copy(path, binary)
corpus = args.corpus or "the commit's recordings"
say(f'# commit {commit}, {time.strftime("%H:%M")}: {len(wanted)} changes of {len(P)}, {corpus}')
before = replay(binary, 0)
say(f'# without any: {before[0]} {", ".join(before[1])}')
if before[0] != 'GREEN': sys.exit('the corpus is red without any change')
for n, p in wanted:
    colour, red = replay(binary, n)
    bad += colour != 'red'
    say(f'{p["subject"]:<10} | {p["what"]}{of(p)} | {colour} | {", ".join(red)} | {os.path.relpath(p["at"], SRC + "/" + E)}')
say(f'# {len(wanted) - bad} of {len(wanted)} red')
sys.exit(bool(bad))
