//! The path of each point: loopback, or the link that the point names. One link is up at a time,
//! and stays up while consecutive points name the same one. It is measured when it comes up, and
//! again after a while. The measurement goes into the record.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::json;

use crate::context::{Between, Context, LinkFacts, Role};
use crate::link::{self, Backend, Link, LinkError, LinkOptions, LinkSpec, Measured, Side};
use crate::measure::Error;
use crate::point::Point;

/// The maximum age of a link's measurement at the begin of a point.
const STALE: Duration = Duration::from_secs(120);

/// How often a new link is measured until it carries its rate: another program may disturb once.
const CALIBRATIONS: u32 = 3;

/// The paths of one experiment.
pub struct Paths {
    stag: PathBuf,
    up: Option<Up>,
    count: u64,
}

struct Up {
    spec: LinkSpec,
    link: Rc<Ends>,
    measured: Measured,
    at: Instant,
}

struct Ends(Link);

/// Loopback, for programs that end with the lab.
struct Here {
    stag: PathBuf,
}

impl Between for Here {
    fn command(&self, _: Role, program: &OsStr) -> Command {
        link::child(&self.stag, program)
    }

    fn address(&self, _: Role) -> IpAddr {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    }
}

impl Between for Ends {
    fn command(&self, role: Role, program: &OsStr) -> Command {
        self.0.command(side(role), program)
    }

    fn address(&self, role: Role) -> IpAddr {
        IpAddr::V4(self.0.address(side(role)))
    }

    fn addresses(&self, role: Role) -> Vec<IpAddr> {
        self.0.addresses(side(role)).into_iter().map(IpAddr::V4).collect()
    }
}

fn side(role: Role) -> Side {
    match role {
        Role::Target => Side::A,
        Role::Client => Side::B,
    }
}

impl Paths {
    /// No path yet; this program will make the links.
    pub fn new(stag: &Path) -> Self {
        Self { stag: stag.to_owned(), up: None, count: 0 }
    }

    /// Whether the path of `point` differs from the current one.
    ///
    /// # Errors
    /// If the point's link settings are invalid.
    pub fn changes(&self, point: &Point) -> Result<bool, Error> {
        Ok(wanted(point)?.as_ref() != self.up.as_ref().map(|up| &up.spec))
    }

    /// Brings up the path of `point`, unless it is up, and measures it.
    pub fn lead(&mut self, point: &Point) -> Result<(), Error> {
        if self.changes(point)? {
            self.up = None;
            self.count += 1;
            if let Some(spec) = wanted(point)? {
                let link = Link::up_by(&self.stag, &spec).map_err(cannot)?;
                let measured = calibrated(&link)?;
                self.up = Some(Up { spec, link: Rc::new(Ends(link)), measured, at: Instant::now() });
            }
        }
        if let Some(up) = &mut self.up {
            if up.at.elapsed() >= STALE {
                up.measured = up.link.0.measure().map_err(cannot)?;
                up.at = Instant::now();
            }
            up.link.0.reset_counters().map_err(cannot)?;
        }
        Ok(())
    }

    /// Ends the current link.
    pub fn leave(&mut self) {
        self.up = None;
        self.count += 1;
    }

    /// Sets the path in the context of a measure.
    pub fn enter(&self, context: &mut Context) {
        context.path = self.count;
        let Some(up) = &self.up else {
            context.between = Rc::new(Here { stag: self.stag.clone() });
            return;
        };
        context.between = Rc::<Ends>::clone(&up.link);
        context.link = Some(LinkFacts {
            name: up.spec.name.clone(),
            rate_bits: up.spec.lines().map(|line| line.a_to_b.mean_rate()).sum(),
            rtt_ms: up.measured.round_trip_us.median / 1000.0,
            asked_ms: up.measured.round_trip_asked_us / 1000.0,
            mtu: up.spec.mtu,
        });
    }

    /// The record's entry for the link: the configuration, the setup, the measurement, the counters
    /// of the point, and why the link was behind, if it was.
    pub fn record(&self) -> serde_json::Value {
        let Some(up) = &self.up else { return serde_json::Value::Null };
        let counters = up.link.0.counters().ok();
        let behind = counters.as_ref().and_then(|counters| counters.behind(&up.spec));
        json!({
            "asked": up.spec,
            "setup": up.link.0.setup(),
            "measured": up.measured,
            "counters": counters,
            "behind": behind,
        })
    }
}

fn cannot(error: LinkError) -> Error {
    match error {
        LinkError::Unavailable(_) => Error::Missing(error.to_string()),
        LinkError::Spec(error) => Error::Experiment(error.to_string()),
        error => Error::Failed(error.to_string()),
    }
}

/// Measures a new link.
///
/// # Errors
/// If this machine does not carry its rate, in any of [`CALIBRATIONS`].
fn calibrated(link: &Link) -> Result<Measured, Error> {
    let mut slow = String::new();
    for _ in 0..CALIBRATIONS {
        let measured = link.measure().map_err(cannot)?;
        match measured.too_slow(link.spec()) {
            None => return Ok(measured),
            Some(why) => slow = why,
        }
    }
    Err(Error::Missing(format!(
        "this machine does not carry the rate of link {}, in {CALIBRATIONS} measurements: {slow}; a lower `link-rate` or a larger `mtu` costs it less",
        link.spec().name
    )))
}

/// Checks the link that a point names.
///
/// # Errors
/// If there is no such link.
pub(crate) fn check(point: &Point) -> Result<(), Error> {
    wanted(point).map(drop)
}

/// The setting `name`, a list of tables such as `example`.
fn list<T: DeserializeOwned>(point: &Point, name: &str, example: &str) -> Result<Vec<T>, Error> {
    let Some(list) = point.settings.get(name) else { return Ok(Vec::new()) };
    let wrong = |why: String| Error::Experiment(format!("`{name}`{why}"));
    let entries = list.as_array().filter(|entries| !entries.is_empty());
    let entries = entries.ok_or_else(|| wrong(format!(" should be a list of tables such as {example}")))?;
    let read = |(at, entry): (usize, &toml::Value)| {
        let told = |error: toml::de::Error| wrong(format!(", entry {}: {}", at + 1, error.message()));
        entry.clone().try_into().map_err(told)
    };
    entries.iter().enumerate().map(read).collect()
}

/// The link that a point names: `link` is a preset, other settings override it.
fn wanted(point: &Point) -> Result<Option<LinkSpec>, Error> {
    let Some(preset) = point.text("link")?.filter(|name| name != "loopback" && name != "none") else {
        return Ok(None);
    };
    // Numbers are read as text: 0.001 or "0.1%".
    let word = |name: &str| point.value(name).map(|value| value.to_string());
    let number = |name: &str| -> Result<Option<u32>, Error> {
        let wrong = |_| Error::Experiment(format!("`{name}` is too large"));
        point.whole(name)?.map(u32::try_from).transpose().map_err(wrong)
    };
    let backend = match point.text("link-backend")?.as_deref() {
        None => None,
        Some("auto") => Some(Backend::Auto),
        Some("tun") => Some(Backend::Tun),
        Some("netem") => Some(Backend::Netem),
        Some(other) => {
            return Err(Error::Experiment(format!("`link-backend` is auto, tun or netem, not {other}")));
        }
    };
    let options = LinkOptions {
        preset,
        delay: word("link-delay"),
        jitter: word("link-jitter"),
        rate: word("link-rate"),
        rate_plan: list(point, "link-rate-plan", "{ at = \"500ms\", rate = \"1Gb/s\" }")?,
        rate_period: word("link-rate-period"),
        lines: list(point, "link-lines", "{ rate = \"100Mb/s\" }")?,
        queue: word("link-queue"),
        loss: word("link-loss"),
        burst: word("link-burst"),
        reorder: word("link-reorder"),
        reorder_by: word("link-reorder-by"),
        mtu: number("mtu")?,
        overhead: number("link-overhead")?,
        seed: point.whole("link-seed")?,
        backend,
        congestion: point.text("congestion")?,
    };
    options.resolve().map(Some).map_err(|error| Error::Experiment(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(settings: &str) -> Point {
        Point {
            experiment: "made-up".into(),
            coordinates: Vec::new(),
            settings: toml::from_str(settings).unwrap(),
            quick: false,
        }
    }

    #[test]
    fn plans_and_lines_of_a_link_are_lists_of_tables() {
        let lines = "link = 'metro'\nlink-loss = '1%'\nlink-lines = [{ rate = '100Mb/s', mtu = 9000 }, { delay = '1ms', \
                     rate-plan = [{ at = '0', rate = '1Gb/s' }, { at = '1s', rate = '2Gb/s/1Gb/s' }], rate-period = '2s' }]";
        let spec = wanted(&point(lines)).unwrap().unwrap();
        assert_eq!((spec.mtu, spec.others[0].mtu, spec.others[0].a_to_b.loss), (9000, 1500, 0.01));
        assert_eq!(spec.others[0].a_to_b.mean_rate(), Some(1.5e9));
        assert_eq!(spec.others[0].b_to_a.mean_rate(), Some(1e9));
    }

    #[test]
    fn a_wrong_entry_is_told_with_its_place() {
        for (settings, told) in [
            ("link-rate-plan = 3", "`link-rate-plan` should be a list of tables such as { at"),
            ("link-rate-plan = []", "`link-rate-plan` should be a list"),
            (
                "link-rate-plan = [{ at = '0', rate = '1Gb/s' }, { at = '1s', speed = '1Gb/s' }]",
                "entry 2: unknown field `speed`",
            ),
            ("link-rate-plan = [{ at = '0' }]", "entry 1: missing field `rate`"),
            (
                "link-rate-plan = [{ at = '0', rate = '1Gb/s' }, { at = '0', rate = '1Gb/s' }]",
                "step 2 of the rate plan",
            ),
            ("link-lines = [{ rate = '1Gb/s' }, { rate = 1 }]", "entry 2: invalid type"),
            ("link-lines = [{ rate = '1Gb/s' }, { loss = 'all' }]", "line 2: loss `all`"),
        ] {
            let error = check(&point(&format!("link = 'lan'\n{settings}"))).unwrap_err().to_string();
            assert!(error.contains(told), "{settings}: {error}");
        }
    }
}
