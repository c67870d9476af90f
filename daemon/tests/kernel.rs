// SPDX-License-Identifier: Apache-2.0 OR MIT
use giveway::kernel::{flow_monitor::FlowMonitor, own_netns};

#[test]
fn smoke() {
    let t = std::time::Instant::now();
    let mut m = FlowMonitor::open(own_netns().unwrap()).unwrap();
    println!("open {:?}", t.elapsed());
    println!("{:#?}", m.walk().unwrap());
    println!("{:?}", m.pass().unwrap());
}
