//! The kernel's own emulator, netem (tc-netem(8)), at both ends of a pair of veth devices: its
//! parameters, and whether it supports a link's configuration. Kernels without netem refuse the
//! request, and nothing is left behind.

use std::io;

use super::netlink::Netlink;
use super::spec::{Direction, LinkSpec, Queue};

const TCA_NETEM_LOSS: u16 = 5;
const TCA_NETEM_RATE: u16 = 6;
const TCA_NETEM_RATE64: u16 = 8;
const TCA_NETEM_LATENCY64: u16 = 10;
const TCA_NETEM_PRNG_SEED: u16 = 14;
const NETEM_LOSS_GE: u16 = 2;
const NLA_F_NESTED: u16 = 0x8000;

/// Why netem cannot emulate the link, if it cannot. netem reorders wherever the delay varies, and a
/// reordered packet overtakes others by the whole delay.
pub(crate) fn obstacle(spec: &LinkSpec) -> Option<&'static str> {
    if !spec.others.is_empty() {
        return Some("several lines are Stag's own");
    }
    let directions = [&spec.a_to_b, &spec.b_to_a];
    if directions.iter().any(|direction| !direction.jitter.is_zero()) {
        return Some("netem reorders packets where the delay varies");
    }
    if directions.iter().any(|direction| direction.rate_plan.is_some()) {
        return Some("netem has one rate");
    }
    if directions.iter().any(|direction| direction.reorder > 0.0) {
        return Some("netem cannot bring packets late by a time of their own");
    }
    None
}

/// Attaches one direction's netem to the sending device.
pub(crate) fn set_up(
    netlink: &Netlink,
    device: &str,
    direction: &Direction,
    spec: &LinkSpec,
    seed: u64,
) -> io::Result<()> {
    let packet = u64::from(spec.mtu + spec.overhead);
    // netem has one limit, in packets, for the queue and the line together.
    let on_the_line =
        direction.in_flight(packet) - direction.rate.map_or(0, |_| direction.queue.bytes(packet));
    let waiting = match (direction.rate, direction.queue) {
        (None, _) => 100_000,
        (Some(_), Queue::Packets(packets)) => packets.into(),
        (Some(_), Queue::Bytes(bytes)) => bytes / packet,
    };
    let limit = u32::try_from(on_the_line.div_ceil(packet) + waiting).unwrap_or(u32::MAX);
    let chance = |part: f64| (part * f64::from(u32::MAX)).round() as u32;
    let alone = direction.burst <= 1.0;
    // A struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter.
    let loss = if alone { chance(direction.loss) } else { 0 };
    let head: Vec<u8> =
        [0, limit, loss, 0, 0, 0].iter().flat_map(|field: &u32| field.to_ne_bytes()).collect();
    let delay = i64::try_from(direction.delay.as_nanos()).unwrap_or(i64::MAX);
    let mut options = vec![
        (TCA_NETEM_LATENCY64, delay.to_ne_bytes().to_vec()),
        (TCA_NETEM_PRNG_SEED, seed.to_ne_bytes().to_vec()),
    ];
    if let Some(rate) = direction.rate {
        let bytes = rate / 8;
        // A struct tc_netem_rate: rate, overhead, no cells. A veth device adds Ethernet's 14 bytes
        // itself.
        let overhead = spec.overhead as i32 - 14;
        let small = u32::try_from(bytes).unwrap_or(u32::MAX);
        let fields = [small.to_ne_bytes(), overhead.to_ne_bytes(), [0; 4], [0; 4]];
        options.push((TCA_NETEM_RATE, fields.concat()));
        if u32::try_from(bytes).is_err() {
            options.push((TCA_NETEM_RATE64, bytes.to_ne_bytes().to_vec()));
        }
    }
    if !alone && direction.loss > 0.0 {
        // A struct tc_netem_gemodel, in an attribute of its own: probabilities of entering the bad
        // state, leaving it, keeping a packet in it, and losing one in the good state.
        let end = 1.0 / direction.burst;
        let begin = end * direction.loss / (1.0 - direction.loss);
        let mut model = 20u16.to_ne_bytes().to_vec();
        model.extend_from_slice(&NETEM_LOSS_GE.to_ne_bytes());
        for field in [chance(begin), chance(end), 0, 0] {
            model.extend_from_slice(&field.to_ne_bytes());
        }
        options.push((TCA_NETEM_LOSS | NLA_F_NESTED, model));
    }
    netlink.discipline(device, "netem", &head, &options)
}

#[cfg(test)]
mod tests {
    use super::super::options::LinkOptions;
    use super::*;

    #[test]
    fn netem_is_not_asked_for_what_it_does_otherwise() {
        let spec = |options: LinkOptions| options.resolve().expect("the options make a link");
        assert_eq!(obstacle(&spec(LinkOptions::of("wan-1400mi"))), None);
        let jitter = LinkOptions { jitter: Some("1ms/0".into()), ..LinkOptions::of("wan-1400mi") };
        assert!(obstacle(&spec(jitter)).is_some());
        let rate_plan = vec!["0=1Mb/s".parse().expect("a step")];
        let plan = LinkOptions { rate_plan, ..LinkOptions::of("wan-1400mi") };
        assert!(obstacle(&spec(plan)).is_some());
        let reorder = LinkOptions { reorder: Some("1%".into()), ..LinkOptions::of("wan-1400mi") };
        assert!(obstacle(&spec(reorder)).is_some());
    }
}
