// SPDX-License-Identifier: Apache-2.0 OR MIT
use giveway::actuate::cap::{CapActuator, lift::Lift};
use giveway::kernel::{flow_monitor::FlowMonitor, own_netns};
use std::time::Instant;

#[test]
fn smoke() {
    let inum = own_netns().unwrap();
    let t = Instant::now();
    let mut m = FlowMonitor::open(inum).unwrap();
    println!("open {:?}", t.elapsed());
    println!("{:#?}", m.walk().unwrap());
    println!("{:?}", m.pass().unwrap());
    let t = Instant::now();
    let mut c = CapActuator::open(inum).unwrap();
    println!(
        "open cap {:?} {:?} {:?}",
        t.elapsed(),
        c.new_connections_missing(),
        c.ease_missing()
    );
    println!("{:?}", c.publish_new(5, &[(0, 7)]));
    let t = Instant::now();
    let mut l = Lift::open(inum).unwrap();
    println!("open lift {:?}", t.elapsed());
    println!("{:?} {:?}", l.run(&[7], false).unwrap(), t.elapsed());
    println!(
        "{:?}",
        std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
    );
    let t = Instant::now();
    drop(l);
    println!("drop lift {:?}", t.elapsed());
    println!("{:?}", c.revert());
}
