//! How much room an image takes, and how much there is. Looks at the cluster on a thread of its
//! own, at most every few seconds, and never keeps a caller waiting for long.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use backing::Resources;
use rados::Image;
use serde_json::Value;

/// How long what was seen is told again. Managers tell monitors of pools every five seconds.
const FRESH: Duration = Duration::from_secs(5);
/// How long a caller waits for a look. After that it gets what was seen before.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Default)]
pub(crate) struct Space(Arc<(Mutex<Seen>, Condvar)>);

#[derive(Default)]
struct Seen {
    looking: bool,
    at: Option<Instant>,
    last: Option<Resources>,
}

impl Space {
    /// What there is; `None` if the image or the cluster does not know. Waits for the cluster, up
    /// to two seconds.
    pub(crate) fn see(&self, image: Option<Image>) -> Option<Resources> {
        let mut seen = self.lock();
        let is_fresh = seen.at.is_some_and(|at| at.elapsed() < FRESH);
        if let Some(image) = image.filter(|_| !is_fresh && !seen.looking) {
            let this = self.clone();
            seen.looking = rados::start_unpinned(move || this.look(&image));
        }
        let (_, ended) = &*self.0;
        let waited = ended.wait_timeout_while(seen, PATIENCE, |seen| seen.looking && !is_fresh);
        waited.unwrap_or_else(PoisonError::into_inner).0.last
    }

    fn look(&self, image: &Image) {
        let found = found(image).unwrap_or_else(|error| {
            tracing::debug!(%error, "the space of an image is not known");
            None
        });
        let mut seen = self.lock();
        *seen = Seen { looking: false, at: Some(Instant::now()), last: found };
        drop(seen);
        self.0.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn found(image: &Image) -> Result<Option<Resources>, rados::Error> {
    let Some(used) = image.used()? else { return Ok(None) };
    let rest = image.size()?.saturating_sub(used);
    let free = free_in(&image.space_of_pools()?, image.data_pool());
    Ok(free.map(|free| Resources { used, available: free.min(rest), dedicated: false }))
}

/// Bytes that can still be written to a pool, by the answer to `df detail`: what its OSDs have for
/// it, or what its quota leaves.
fn free_in(told: &str, pool: i64) -> Option<u64> {
    let told: Value = serde_json::from_str(told).ok()?;
    let stats = &told["pools"].as_array()?.iter().find(|one| one["id"].as_i64() == Some(pool))?["stats"];
    let number = |name: &str| stats[name].as_u64();
    let free = number("max_avail")?;
    match number("quota_bytes").filter(|quota| *quota > 0) {
        Some(quota) => Some(free.min(quota.saturating_sub(number("stored")?))),
        None => Some(free),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_what_its_osds_and_its_quota_leave() {
        let told = |stats: &str| {
            format!(
                r#"{{"stats":{{}},"pools":[{{"name":"a","id":1,"stats":{{"max_avail":1}}}},{{"name":"b","id":2,"stats":{{{stats}}}}}]}}"#
            )
        };
        for (stats, free) in [
            (r#""stored":30,"max_avail":100,"quota_bytes":0"#, Some(100)),
            (r#""stored":30,"max_avail":100"#, Some(100)),
            (r#""stored":30,"max_avail":100,"quota_bytes":50"#, Some(20)),
            (r#""stored":30,"max_avail":10,"quota_bytes":50"#, Some(10)),
            (r#""stored":60,"max_avail":100,"quota_bytes":50"#, Some(0)),
            (r#""max_avail":100,"quota_bytes":50"#, None),
            (r#""stored":30"#, None),
        ] {
            assert_eq!(free_in(&told(stats), 2), free, "{stats}");
        }
        assert_eq!(free_in(&told(""), 3), None);
        // Without a manager.
        assert_eq!(free_in(r#"{"stats":{},"pools":[]}"#, 2), None);
        assert_eq!(free_in("", 2), None);
    }
}
