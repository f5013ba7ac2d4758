//! The chosen settings in the notation of each program: a URL, options of `stag`, open-iscsi's
//! names, stag's `[limits]`.

use iscsi_client::tune::plan::Plan;
use iscsi_client::{Transport, Url};

/// The URL with all settings.
pub fn url(url: &Url, plan: &Plan) -> String {
    Url { settings: plan.settings.clone(), ..url.clone() }.to_string()
}

/// Options that give other sessions with the same target the same settings: for `stag bench`, `cp`,
/// `read` and `write`.
pub fn arguments(plan: &Plan) -> Vec<String> {
    vec!["--settings".to_owned(), plan.settings.to_string()]
}

/// Options of `stag bench` for the chosen load.
pub fn bench(plan: &Plan) -> Vec<String> {
    let mut words = arguments(plan);
    words.extend(["--bs".to_owned(), plan.io.to_string(), "--depth".to_owned(), plan.depth.to_string()]);
    if plan.sessions > 1 {
        words.extend(["--sessions".to_owned(), plan.sessions.to_string()]);
    }
    words
}

/// Lines of open-iscsi's iscsid.conf, by name and value.
pub fn iscsid(plan: &Plan, transport: Transport) -> Vec<(String, String)> {
    let settings = &plan.settings;
    let yes = |yes: bool| if yes { "Yes" } else { "No" }.to_owned();
    let mut lines: Vec<(&str, Option<String>)> = Vec::new();
    if transport == Transport::Iser {
        lines.push(("iface.transport_name", Some("iser".to_owned())));
    } else {
        lines.extend([
            ("node.session.iscsi.InitialR2T", settings.initial_r2t.map(yes)),
            ("node.session.iscsi.ImmediateData", settings.immediate_data.map(yes)),
            ("node.session.iscsi.FirstBurstLength", settings.first_burst.map(|n| n.to_string())),
            ("node.conn[0].iscsi.MaxRecvDataSegmentLength", settings.recv_segment.map(|n| n.to_string())),
            // Its pool of R2Ts has a power of two.
            (
                "node.session.iscsi.MaxOutstandingR2T",
                settings.outstanding_r2t.map(|n| (1u32 << u32::from(n.max(1)).ilog2()).to_string()),
            ),
        ]);
    }
    lines.push(("node.session.iscsi.MaxBurstLength", settings.max_burst.map(|n| n.to_string())));
    let depth = u32::from(plan.depth).clamp(32, 1024);
    lines.push(("node.session.queue_depth", Some(depth.to_string())));
    // A power of two, 2 to 2048, with room for requests that are not commands.
    lines.push(("node.session.cmds_max", Some((depth + 1).next_power_of_two().clamp(128, 2048).to_string())));
    // open-iscsi has one connection per session: several sessions with multipath replace them.
    let sessions = u32::from(plan.sessions.max(1)) * u32::from(settings.connections.unwrap_or(1).max(1));
    lines.push(("node.session.nr_sessions", Some(sessions.to_string())));
    lines.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Lines of the `[limits]` of a stag that serves, by name and value.
pub fn limits(plan: &Plan) -> Vec<(String, String)> {
    let serving = &plan.serving;
    [
        ("queue-depth", serving.queue_depth),
        ("max-burst", serving.max_burst),
        ("first-burst", serving.first_burst),
        ("max-outstanding-r2t", serving.outstanding_r2t.into()),
        ("send-high-water", serving.send_high_water),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_string()))
    .to_vec()
}
