use super::*;
use crate::lab::Lab;

/// Counters as `ethtool -S` prints them.
fn recorded(text: &str) -> Vec<(String, u64)> {
    let row = |line: &str| {
        let (name, value) = line.trim().rsplit_once(": ")?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

/// Losses as "cause counter packets".
fn losses(text: &str) -> Vec<String> {
    let said = |loss: CardLoss| format!("{} {} {}", loss.cause.word(), loss.counter, loss.packets);
    sum_losses(recorded(text)).into_iter().map(said).collect()
}

#[test]
fn allowances_of_ena_are_the_clouds_and_its_queues_are_the_cards() {
    let ena = "NIC statistics:
         total_resets: 0
         tx_timeout: 0
         suspend: 0
         resume: 0
         wd_expired: 0
         interface_up: 1
         interface_down: 0
         admin_q_pause: 0
         bw_in_allowance_exceeded: 5
         bw_out_allowance_exceeded: 10
         pps_allowance_exceeded: 25
         conntrack_allowance_exceeded: 15
         conntrack_allowance_available: 110
         linklocal_allowance_exceeded: 20
         queue_0_tx_cnt: 368940
         queue_0_tx_bytes: 126196057
         queue_0_tx_missed_tx: 1
         queue_1_tx_missed_tx: 2
         queue_0_rx_cnt: 83
         queue_0_rx_page_alloc_fail: 4
         queue_0_rx_xdp_drop: 9
         rx_overruns: 0
         rx_drops: 7";
    assert_eq!(
        losses(ena),
        [
            "cloud bw_in_allowance_exceeded 5",
            "cloud bw_out_allowance_exceeded 10",
            "cloud conntrack_allowance_exceeded 15",
            "cloud linklocal_allowance_exceeded 20",
            "cloud pps_allowance_exceeded 25",
            "card rx_drops 7",
            "card rx_overruns 0",
            "card tx_missed_tx 3",
        ]
    );
}

#[test]
fn queues_of_other_drivers_are_added_up() {
    let gve = "NIC statistics:
         rx_packets: 584088
         rx_dropped: 0
         tx_timeouts: 0
         rx_buf_alloc_fail: 0
         rx_posted_desc[0]: 1937
         rx_dropped_pkt[0]: 1
         rx_queue_drop_cnt[0]: 2
         rx_no_buffers_posted[0]: 3
         rx_drops_packet_over_mru[0]: 0
         rx_xdp_drop[0]: 8
         rx_dropped_pkt[1]: 10
         rx_queue_drop_cnt[1]: 20
         rx_no_buffers_posted[1]: 30
         tx_stop[0]: 4";
    let expected = [
        "card rx_dropped 0",
        "card rx_dropped_pkt 11",
        "card rx_drops_packet_over_mru 0",
        "card rx_no_buffers_posted 33",
        "card rx_queue_drop_cnt 22",
    ];
    assert_eq!(losses(gve), expected);
    let mlx5 = "rx_out_of_buffer: 4
         rx0_packets: 7
         tx0_queue_dropped: 1
         tx11_queue_dropped: 2
         rx_discards_phy: 5
         rx_prio0_discards: 5
         rx_steer_missed_packets: 6
         rx_65_to_127_bytes_phy: 44";
    let expected = [
        "card rx_discards_phy 5",
        "card rx_out_of_buffer 4",
        "card rx_prio0_discards 5",
        "card rx_steer_missed_packets 6",
        "card tx_queue_dropped 3",
    ];
    assert_eq!(losses(mlx5), expected);
    let mana = "stop_queue: 1
         hc_rx_discards_no_wqe: 9
         hc_rx_bytes: 7
         rx_0_packets: 3
         rx_0_xdp_drop: 3
         tx_0_xdp_xmit: 1";
    assert_eq!(losses(mana), ["card hc_rx_discards_no_wqe 9"]);
    let virtio = "rx_queue_0_packets: 2\nrx_queue_0_drops: 1\nrx_queue_1_drops: 3\nrx0_drops: 4";
    assert_eq!(losses(virtio), ["card rx_drops 8"]);
    assert_eq!(losses("tx_0: 1\n: 2\n_: 3\n[: 4"), [""; 0]);
}

#[test]
fn counters_that_overflow_stay_at_the_end() {
    let counters = [("rx0_drops", u64::MAX), ("rx1_drops", 2)];
    let summed = sum_losses(counters.map(|(name, packets)| (name.to_owned(), packets)));
    assert_eq!(summed[0].packets, u64::MAX);
}

#[test]
fn the_kernels_file_tells_both_directions_of_one_interface() {
    let text = "Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
  eth0: 10 20 30 40 50 60 70 80 90 100 110 120 130 140 150 160
  eth1:10 20";
    let drops = |interface| kernel_drops(text, interface).into_iter().map(|loss| loss.packets);
    assert_eq!(drops("eth0").collect::<Vec<_>>(), [40, 120]);
    assert_eq!(drops("eth1").count() + drops("eth").count(), 0);
}

#[test]
fn a_virtual_link_of_a_host_tells_its_counters_and_loopback_has_no_card() {
    assert!(LossReader::for_address("127.0.0.1".parse().unwrap()).unwrap().is_none());
    assert!(LossReader::for_address("192.0.2.77".parse().unwrap()).unwrap().is_none());
    assert!(LossReader::open("no-such-card").is_err());
    let Ok(lab) = Lab::new(2).inspect_err(|error| println!("skipped: hosts: {error}")) else {
        return;
    };
    let address = lab.address(0);
    let losses = lab.within(0, || {
        let reader = LossReader::for_address(address.into()).unwrap().expect("a card");
        assert_ne!(reader.interface(), "lo");
        reader.read_losses()
    });
    let losses = losses.unwrap();
    let has = |counter: &str| losses.iter().any(|loss| loss.counter == counter);
    assert!(has("rx_drops"), "the driver of virtual links counts by queue: {losses:?}");
    assert!(has("kernel_rx_dropped") && has("kernel_tx_dropped"), "{losses:?}");
    assert!(losses.iter().all(|loss| loss.cause == LossCause::Card));
}
