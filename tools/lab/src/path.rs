//! The path of each point: loopback, or the link that the point names. One link is up at a time,
//! and stays up while consecutive points name the same one. It is measured when it comes up, and
//! again after a while. The measurement goes into the record.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::context::{Between, Context, LinkFacts, Role};
use crate::link::{self, Backend, Link, LinkError, LinkOptions, LinkSpec, Measured, Side};
use crate::measure::Error;
use crate::point::Point;

/// The maximum age of a link's measurement at the begin of a point.
const STALE: Duration = Duration::from_secs(120);

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
                let measured = link.measure().map_err(cannot)?;
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
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            rate_bits: up.spec.a_to_b.rate.map(|rate| rate as f64),
            rtt_ms: up.measured.round_trip_us.median / 1000.0,
            mtu: up.spec.mtu,
        });
    }

    /// The record's entry for the link: the configuration, the setup, the measurement, and the
    /// counters of the point.
    pub fn record(&self) -> serde_json::Value {
        let Some(up) = &self.up else { return serde_json::Value::Null };
        let counters = up.link.0.counters().ok();
        json!({ "asked": up.spec, "setup": up.link.0.setup(), "measured": up.measured, "counters": counters })
    }
}

fn cannot(error: LinkError) -> Error {
    match error {
        LinkError::Unavailable(_) => Error::Missing(error.to_string()),
        LinkError::Spec(error) => Error::Experiment(error.to_string()),
        error => Error::Failed(error.to_string()),
    }
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
        queue: word("link-queue"),
        loss: word("link-loss"),
        burst: word("link-burst"),
        reorder: word("link-reorder"),
        reorder_by: word("link-reorder-by"),
        mtu: number("mtu")?,
        overhead: number("link-overhead")?,
        seed: point.whole("link-seed")?,
        backend,
    };
    options.resolve().map(Some).map_err(|error| Error::Experiment(error.to_string()))
}
