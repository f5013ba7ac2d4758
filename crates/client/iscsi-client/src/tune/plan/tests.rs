//! The settings for various paths.

use super::*;

fn path(mbit: f64, rtt_ms: f64) -> Measured {
    let rtt = Duration::from_secs_f64(rtt_ms / 1e3);
    let rate = mbit * 1e6 / 8.0;
    Measured {
        rtt: RoundTrips { least: rtt, p50: rtt, p90: rtt, most: rtt },
        alone: rtt + Duration::from_secs_f64(65536.0 / rate),
        read: rate,
        write: None,
        loss: 0.0,
    }
}

/// The limits of a default Stag.
pub(in crate::tune) const STAG: Allowed = Allowed {
    iser: false,
    connections: 8,
    max_burst: 1 << 20,
    first_burst: 262_144,
    initial_r2t: false,
    immediate_data: true,
    outstanding_r2t: 8,
    segment: 262_144,
    window: 128,
    max_transfer: 16 << 20,
    reads: 128,
};

fn linux() -> SystemLimits {
    SystemLimits {
        send_auto: 4 << 20,
        recv_auto: 6 << 20,
        send_max: 212_992,
        recv_max: 212_992,
        congestion: "cubic".into(),
        congestion_allowed: vec!["reno".into(), "cubic".into()],
    }
}

#[test]
fn every_path_gets_twice_what_it_holds_under_way() {
    for (mbit, rtt) in
        [(1000.0, 0.05), (1000.0, 1.0), (1000.0, 23.0), (10_000.0, 23.0), (100.0, 140.0), (1000.0, 140.0)]
    {
        for iser in [false, true] {
            let measured = path(mbit, rtt);
            let plan = plan(&measured, &Allowed { iser, ..STAG }, &linux());
            let held = (mbit * 1e6 / 8.0 * rtt / 1e3) as u64;
            assert!(plan.holds.abs_diff(held) <= 1 + held / 1000, "{mbit} {rtt}: {plan:?}");
            let given = u64::from(plan.io) * u64::from(plan.depth) * u64::from(plan.sessions);
            let bounded = plan.sessions == 8 || plan.depth == 128;
            assert!(given >= 2 * held || bounded, "{mbit} Mb/s, {rtt} ms: {given} of {held}");
            assert!(u32::from(plan.depth) <= STAG.window && (4..=128).contains(&plan.depth));
            assert!((65_536..=1 << 20).contains(&plan.io) && plan.io.is_power_of_two());
        }
    }
}

#[test]
fn a_gigabit_over_1400_miles_needs_more_than_defaults_have() {
    let tcp = plan(&path(1000.0, 23.0), &STAG, &linux());
    // 2.875 MB in flight: 64 KiB at a depth of 32 is 2.1 MB.
    assert_eq!(tcp.holds, 2_875_000);
    assert!(u64::from(tcp.io) * u64::from(tcp.depth) >= 2 * tcp.holds);
    assert_eq!((tcp.settings.initial_r2t, tcp.settings.immediate_data), (Some(false), Some(true)));
    assert!(tcp.settings.first_burst.unwrap() >= tcp.io, "writes go unasked");
    let iser = plan(&path(1000.0, 23.0), &Allowed { iser: true, connections: 1, ..STAG }, &linux());
    assert_eq!(iser.under_way, tcp.under_way);
    assert!(iser.under_way_long > tcp.under_way, "fetched writes travel twice");
    assert!(iser.settings.reads.unwrap() >= 16);
}

#[test]
fn writes_with_solicited_data_have_twice_the_bytes_in_flight() {
    let plan = plan(&path(1000.0, 23.0), &STAG, &linux());
    assert_eq!((plan.unasked, plan.io), (262_144, 262_144));
    // Twice 125 MB/s × 23.5 ms, and × 46.5 ms.
    assert!((5_800_000..6_000_000).contains(&plan.under_way), "{}", plan.under_way);
    assert!((11_500_000..11_800_000).contains(&plan.under_way_long), "{}", plan.under_way_long);
    let depths = |write| LENGTHS.map(|block| plan.shape(write, block.into()).depth);
    assert_eq!(depths(false), [91, 24, 7, 4, 4]);
    assert_eq!(depths(true), [91, 24, 13, 6, 4]);
    // A target that solicits all data of writes of any length.
    let asked = Allowed { initial_r2t: true, immediate_data: false, ..STAG };
    let asked = super::plan(&path(1000.0, 23.0), &asked, &linux());
    assert_eq!((asked.unasked, asked.shape(false, 1 << 18).depth), (0, 24));
    assert!(asked.shape(true, 1 << 18).depth >= 46, "{:?}", asked.shape(true, 1 << 18));
    assert_eq!(asked.depth, asked.shape(true, asked.io.into()).depth);
    assert!(asked.advice.iter().any(|advice| advice.contains("InitialR2T")));
    // Immediate data in the command's own PDU still needs no R2T.
    let immediate = Allowed { initial_r2t: true, segment: 65_536, ..STAG };
    assert_eq!(super::plan(&path(1000.0, 23.0), &immediate, &linux()).unasked, 65_536);
}

#[test]
fn the_first_burst_is_the_targets_maximum_only_on_long_paths() {
    let roomy = Allowed { first_burst: 4 << 20, max_burst: 4 << 20, ..STAG };
    let first = |ms| plan(&path(1000.0, ms), &roomy, &linux()).settings.first_burst;
    assert_eq!((first(23.0), first(0.2)), (Some(1 << 20), Some(262_144)));
    let wide = plan(&path(1000.0, 23.0), &roomy, &linux());
    assert_eq!(wide.shape(true, 1 << 20), wide.shape(false, 1 << 20), "a megabyte goes unasked");
    assert!(wide.settings.first_burst <= wide.settings.max_burst);
}

#[test]
fn a_target_with_small_requests_gets_more_commands_and_an_advice() {
    let narrow = Allowed { outstanding_r2t: 1, max_burst: 262_144, ..STAG };
    let narrow = plan(&path(1000.0, 23.0), &narrow, &linux());
    let usual = plan(&path(1000.0, 23.0), &STAG, &linux());
    assert!(narrow.shape(true, 1 << 20).depth > 3 * usual.shape(true, 1 << 20).depth / 2);
    assert!(narrow.advice.iter().any(|advice| advice.contains("max-outstanding-r2t")), "{:?}", narrow.advice);
    assert!(!usual.advice.iter().any(|advice| advice.contains("max-outstanding-r2t")));
    assert!(usual.settings.outstanding_r2t >= Some(8), "it may ask for less than a burst by each");
}

#[test]
fn a_command_window_too_narrow_for_a_length_means_more_sessions() {
    let plan = plan(
        &path(1000.0, 141.0),
        &STAG,
        &SystemLimits { send_auto: 64 << 20, recv_auto: 64 << 20, ..linux() },
    );
    let shape = plan.shape(false, 65_536);
    assert!(shape.sessions > 1 && shape.depth <= 128, "{shape:?}");
    assert!(u64::from(shape.sessions) * u64::from(shape.depth) * 65_536 >= 2 * plan.holds);
    assert_eq!(plan.shape(false, 1 << 20).sessions, 1);
}

#[test]
fn what_one_socket_does_not_carry_several_do() {
    // 21.9 MB are needed; sockets with automatic buffers keep 2.7 MiB in flight.
    let wide = plan(&path(1000.0, 140.0), &STAG, &linux());
    assert_eq!(wide.settings.connections, Some(8));
    assert_eq!((wide.settings.send_buffer, wide.settings.recv_buffer), (None, None));
    assert!(wide.advice.iter().any(|advice| advice.contains("tcp_rmem")));
    // Over iSER a session has one connection, so there are several sessions.
    let iser = plan(&path(1000.0, 140.0), &Allowed { iser: true, connections: 1, ..STAG }, &linux());
    assert_eq!((iser.settings.connections, iser.sessions), (Some(1), 8));
    // A system that allows large buffers gets a request for one.
    let roomy = SystemLimits { send_max: 32 << 20, recv_max: 64 << 20, ..linux() };
    let fixed = plan(&path(1000.0, 140.0), &STAG, &roomy);
    assert_eq!(fixed.settings.connections, Some(1));
    assert!(u64::from(fixed.settings.recv_buffer.unwrap()) >= fixed.holds);
    // The kernel doubles it, and two thirds of that are in flight: not more than needed.
    let sent = u64::from(fixed.settings.send_buffer.unwrap()) * 4 / 3;
    assert!((fixed.holds..2 * fixed.holds).contains(&sent), "{sent}");
}

#[test]
fn fixed_buffers_that_are_shorter_than_what_grows_are_not_asked_for() {
    // net.core.rmem_max is 208 KiB on most systems: a socket with that buffer is worse than an
    // automatic one.
    let plan = plan(&path(1000.0, 30.0), &STAG, &linux());
    assert_eq!((plan.settings.send_buffer, plan.settings.recv_buffer), (None, None));
}

#[test]
fn loss_leads_to_another_congestion_control_or_more_connections() {
    let lossy = Measured { loss: 1e-4, ..path(1000.0, 23.0) };
    // 1.22 segments by the root of the loss is 177 kB in flight per connection: twenty would be
    // needed.
    assert_eq!(plan(&lossy, &STAG, &linux()).settings.connections, Some(8));
    let seldom = Measured { loss: 2e-5, ..path(100.0, 23.0) };
    assert_eq!(plan(&seldom, &STAG, &linux()).settings.connections, Some(1), "359 kB of 395 kB");
    let mut system = SystemLimits { recv_auto: 32 << 20, send_auto: 16 << 20, ..linux() };
    system.congestion_allowed.push("bbr".into());
    let with = plan(&lossy, &STAG, &system);
    assert_eq!((with.settings.congestion.as_deref(), with.settings.connections), (Some("bbr"), Some(1)));
    // On a short path it does not matter.
    assert_eq!(plan(&path(1000.0, 0.2), &STAG, &system).settings.congestion, None);
}

#[test]
fn a_narrow_target_is_used_as_far_as_it_goes() {
    let narrow = Allowed {
        window: 4,
        max_transfer: 65_536,
        max_burst: 65_536,
        first_burst: 8192,
        connections: 1,
        outstanding_r2t: 1,
        ..STAG
    };
    let plan = plan(&path(1000.0, 23.0), &narrow, &linux());
    assert_eq!((plan.io, plan.depth, plan.sessions), (65_536, 4, 8));
    assert_eq!(plan.settings.outstanding_r2t, Some(1));
    assert!(plan.settings.max_burst.unwrap() <= 65_536);
    assert!(plan.advice.iter().any(|advice| advice.contains("queue-depth")));
}

#[test]
fn a_slow_unit_counts_like_a_long_path() {
    let near = Measured { alone: Duration::from_millis(8), ..path(1000.0, 0.1) };
    let plan = plan(&near, &STAG, &linux());
    assert!(plan.under_way >= 2_000_000, "{plan:?}");
    assert!(plan.holds < 20_000);
}

#[test]
fn no_input_makes_it_panic_or_ask_for_nothing() {
    let odd = [0.0, 1.0, 1e12, f64::INFINITY, f64::NAN];
    for read in odd {
        for loss in odd {
            for rtt in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(3600)] {
                let rtts = RoundTrips { least: rtt, p50: rtt, p90: rtt, most: rtt };
                let measured = Measured { rtt: rtts, alone: rtt, read, write: Some(read), loss };
                for most in [0, 1, 511, u32::MAX] {
                    let allowed = Allowed {
                        window: most,
                        max_transfer: most,
                        first_burst: most,
                        max_burst: most,
                        connections: 0,
                        reads: 0,
                        ..STAG
                    };
                    let plan = plan(&measured, &allowed, &SystemLimits::default());
                    assert!(plan.depth >= 1 && plan.io >= 1 && plan.sessions >= 1);
                }
            }
        }
    }
}

#[test]
fn percentiles_are_of_what_was_measured() {
    let mut times: Vec<Duration> = (1..=10).rev().map(Duration::from_millis).collect();
    let rtt = RoundTrips::of(&mut times).unwrap();
    let ms = Duration::from_millis;
    assert_eq!(rtt, RoundTrips { least: ms(1), p50: ms(5), p90: ms(9), most: ms(10) });
    assert_eq!(RoundTrips::of(&mut []), None);
}
