//! The measurements and the choice, as text and as JSON. Scripts read the JSON's fields, so their
//! names are stable.

use std::fmt::Write as _;

use iscsi_client::tune::plan::{Allowed, LENGTHS, Measured, Plan, Shape};
use iscsi_client::{Options, Transport, Url};
use runtime::SystemLimits;
use serde_json::{Value, json};

use super::{Rates, USUAL, mb, ms, quoted, round, us, words};

/// Version of the format: increases when a field changes its meaning or is removed.
const FORMAT: u32 = 1;

pub struct Report {
    pub url: Url,
    /// Bytes of the unit, and of a logical block.
    pub about: (u64, u32),
    pub measured: Measured,
    pub allowed: Allowed,
    pub system: SystemLimits,
    pub plan: Plan,
    pub before: Rates,
    pub after: Rates,
    pub options: Options,
}

impl Report {
    /// Throughput relative to before, for each measured direction.
    fn gain(&self) -> (f64, Option<f64>) {
        let times = |after: f64, before: f64| if before > 0.0 { after / before } else { 0.0 };
        let write = self.after.write.zip(self.before.write).map(|(after, before)| times(after, before));
        (times(self.after.read, self.before.read), write)
    }

    pub fn json(&self) -> String {
        let (measured, allowed, plan) = (&self.measured, &self.allowed, &self.plan);
        let (read_gain, write_gain) = self.gain();
        let rates = |rates: &Rates| json!({ "read_mb_s": mb(rates.read), "write_mb_s": rates.write.map(mb) });
        let lines = |lines: Vec<(String, String)>| -> Vec<String> {
            lines.into_iter().map(|(name, value)| format!("{name} = {value}")).collect()
        };
        let reasons: Vec<Value> = plan
            .reasons
            .iter()
            .map(|reason| json!({ "what": reason.what, "value": reason.value, "why": reason.why }))
            .collect();
        let loads: Vec<Value> = LENGTHS
            .iter()
            .map(|block| {
                let shape = |write| {
                    let Shape { depth, sessions } = plan.shape(write, u64::from(*block));
                    json!({ "depth": depth, "sessions": sessions })
                };
                json!({ "bs": block, "read": shape(false), "write": shape(true) })
            })
            .collect();
        let document = json!({
            "format": FORMAT,
            "version": env!("CARGO_PKG_VERSION"),
            "url": self.url.to_string(),
            "unit": { "bytes": self.about.0, "block": self.about.1 },
            "measured": {
                "rtt_us": {
                    "least": us(measured.rtt.least), "p50": us(measured.rtt.p50),
                    "p90": us(measured.rtt.p90), "most": us(measured.rtt.most),
                },
                "lone_64k_us": us(measured.alone),
                "read_mb_s": mb(measured.read),
                "write_mb_s": measured.write.map(mb),
                "loss": measured.loss,
            },
            "allowed": {
                "connections": allowed.connections, "max_burst": allowed.max_burst,
                "first_burst": allowed.first_burst, "initial_r2t": allowed.initial_r2t,
                "immediate_data": allowed.immediate_data, "outstanding_r2t": allowed.outstanding_r2t,
                "segment": allowed.segment, "window": allowed.window, "max_transfer": allowed.max_transfer,
                "reads": allowed.iser.then_some(allowed.reads),
            },
            "system": {
                "send_auto": self.system.send_auto, "recv_auto": self.system.recv_auto,
                "send_max": self.system.send_max, "recv_max": self.system.recv_max,
                "congestion": self.system.congestion, "congestion_allowed": self.system.congestion_allowed,
            },
            "chosen": {
                "settings": plan.settings.to_string(),
                "connections": plan.settings.connections.unwrap_or(1),
                "sessions": plan.sessions, "bs": plan.io, "depth": plan.depth,
                "holds_bytes": plan.holds, "under_way_bytes": plan.under_way,
                "unasked_bytes": plan.unasked, "under_way_long_writes_bytes": plan.under_way_long,
            },
            "loads": loads,
            "reasons": reasons,
            "before": rates(&self.before),
            "after": rates(&self.after),
            "gain": { "read": round(read_gain), "write": write_gain.map(round) },
            "arguments": words::arguments(plan),
            "bench_arguments": words::bench(plan),
            "words": {
                "url": words::url(&self.url, plan),
                "iscsid": lines(words::iscsid(plan, self.url.transport)),
                "stag_toml": lines(words::limits(plan)),
            },
            "advice": plan.advice,
        });
        // Numbers, strings and lists of them: nothing that JSON does not have.
        serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let (measured, plan) = (&self.measured, &self.plan);
        writeln!(out, "{}", self.url)?;
        writeln!(out, "\nMeasured")?;
        writeln!(
            out,
            "  round trip           {:.3} ms (least {:.3}, p90 {:.3}, most {:.3})",
            ms(measured.rtt.p50),
            ms(measured.rtt.least),
            ms(measured.rtt.p90),
            ms(measured.rtt.most)
        )?;
        writeln!(out, "  a lone 64 KiB read   {:.3} ms", ms(measured.alone))?;
        writeln!(out, "  reads, at most       {:.1} MB/s", measured.read / 1e6)?;
        match measured.write {
            Some(rate) => writeln!(out, "  writes, at most      {:.1} MB/s", rate / 1e6)?,
            None => {
                writeln!(out, "  writes               not tried: they destroy what is there (--destroy)")?
            }
        }
        if measured.loss > 0.0 {
            writeln!(out, "  sent again           {:.4} % of the segments", measured.loss * 100.0)?;
        }
        writeln!(out, "\nChosen")?;
        for reason in &plan.reasons {
            writeln!(out, "  {:<29} {:<14} {}", reason.what, reason.value, reason.why)?;
        }
        writeln!(out, "\nCommands in flight, by their length")?;
        writeln!(out, "  {:>9} {:>14} {:>14}", "", "reads", "writes")?;
        for block in LENGTHS {
            let of = |write| match plan.shape(write, u64::from(block)) {
                Shape { depth, sessions: 1 } => depth.to_string(),
                Shape { depth, sessions } => format!("{depth} × {sessions} sessions"),
            };
            writeln!(out, "  {:>5} KiB {:>14} {:>14}", block >> 10, of(false), of(true))?;
        }
        writeln!(out, "\nGained")?;
        let (read_gain, write_gain) = self.gain();
        let was = format!("{} KiB × {}", USUAL.0 >> 10, USUAL.1);
        let is = format!("{} KiB × {}", plan.io >> 10, u32::from(plan.depth) * u32::from(plan.sessions));
        writeln!(out, "  {:<8} {:>14} {:>16}", "", was, is)?;
        let mut line = |what: &str, before: f64, after: f64, gain: f64| {
            writeln!(out, "  {what:<8} {:>9.1} MB/s {:>11.1} MB/s   × {gain:.2}", before / 1e6, after / 1e6)
        };
        line("reads", self.before.read, self.after.read, read_gain)?;
        if let (Some(before), Some(after), Some(gain)) = (self.before.write, self.after.write, write_gain) {
            line("writes", before, after, gain)?;
        }
        writeln!(out, "\nWords")?;
        writeln!(out, "  {}", words::url(&self.url, plan))?;
        let bench: Vec<String> = words::bench(plan).iter().map(|word| quoted(word)).collect();
        writeln!(out, "  stag bench {} {}", quoted(&self.url.to_string()), bench.join(" "))?;
        writeln!(out, "  # open-iscsi, iscsid.conf")?;
        for (name, value) in words::iscsid(plan, self.url.transport) {
            writeln!(out, "  {name} = {value}")?;
        }
        writeln!(out, "  # the stag that serves it, stag.toml\n  [limits]")?;
        for (name, value) in words::limits(plan) {
            writeln!(out, "  {name} = {value}")?;
        }
        if !plan.advice.is_empty() {
            writeln!(out, "\nBeyond what a session can do")?;
            for advice in &plan.advice {
                writeln!(out, "  {advice}")?;
            }
        }
        if self.url.transport == Transport::Iser && self.options.connections > 1 {
            writeln!(out, "\nOver iSER a session has one connection.")?;
        }
        Ok(())
    }
}
