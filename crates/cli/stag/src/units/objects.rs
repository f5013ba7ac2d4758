//! Opens units of objects: a store, and the unit of type 11h above it.

use std::sync::Arc;

use device::{Names, Persist};
use objects::store::embedded::{EmbeddedStore, OpenError, Options};
use objects::store::{Change, Commit, ObjectStore, Step};
use objects::unit::{OsdOptions, OsdUnit};
use osd::Id;
use osd::attributes::numbers::root_information::OSD_NAME;
use runtime::Runtime;

use super::open::Unopened;
use crate::identity;
use crate::unit::{Backing, UnitSpec};

/// Opens its store. Blocks on its medium.
///
/// # Errors
/// It cannot be opened.
pub fn open(spec: &UnitSpec) -> Result<Arc<dyn ObjectStore>, Unopened> {
    let store: Arc<dyn ObjectStore> = match &spec.backing {
        Backing::ObjectMemory(bytes) => {
            Arc::new(EmbeddedStore::in_memory(*bytes).map_err(|error| error.to_string())?)
        }
        Backing::Objects(path) => {
            let options = Options { capacity: spec.options.capacity, create: true, ..Options::default() };
            let failed = |error| match error {
                OpenError::Arena(error) => Unopened::from(error),
                error => Unopened::from(error.to_string()),
            };
            Arc::new(EmbeddedStore::open(path, &options).map_err(failed)?)
        }
        other => return Err(format!("{other} holds no objects").into()),
    };
    settle(&store, spec)?;
    Ok(store)
}

/// The unit over an open store.
///
/// # Errors
/// It cannot be served.
pub fn unit(
    store: Arc<dyn ObjectStore>,
    spec: &UnitSpec,
    names: &Names,
    persist: Option<Arc<dyn Persist>>,
) -> Result<Arc<OsdUnit>, String> {
    OsdUnit::new(store, options(spec, names, persist)).map_err(|error| error.to_string())
}

/// The unit with its changed options: the same one if its identity does not change, else another
/// unit over its store, with its reservations.
///
/// # Errors
/// It cannot be served.
pub fn remake(
    before: &Arc<OsdUnit>,
    spec: &UnitSpec,
    names: &Names,
    persist: Option<Arc<dyn Persist>>,
) -> Result<Arc<OsdUnit>, String> {
    let store = before.store().clone();
    settle(&store, spec)?;
    let options = options(spec, names, persist);
    let told = |of: &OsdOptions| (of.identity.clone(), of.system_id);
    if told(&options) == told(before.options()) {
        return Ok(before.clone());
    }
    let unit = OsdUnit::new(store, options).map_err(|error| error.to_string())?;
    unit.nexuses().inherit(before.nexuses());
    Ok(unit)
}

fn options(spec: &UnitSpec, names: &Names, persist: Option<Arc<dyn Persist>>) -> OsdOptions {
    let own = OsdOptions { persist, ..OsdOptions::default().with_names(names.clone()) };
    OsdOptions { identity: identity::names(&spec.options, own.identity), ..own }
}

/// Sets the device's configured name. A name that a client sets later holds until the next start.
fn settle(store: &Arc<dyn ObjectStore>, spec: &UnitSpec) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("its attributes cannot be kept: {error}");
    let Some(name) = spec.options.name.as_ref().map(String::as_bytes) else { return Ok(()) };
    let (page, number) = (OSD_NAME.page.0, OSD_NAME.number);
    let mut before = Vec::new();
    store.attribute(Id::ROOT, page, number, &mut before).map_err(|error| failed(&error))?;
    if before == name {
        return Ok(());
    }
    let mut change = Change::default();
    change.steps.push(Step::SetAttribute { id: Id::ROOT, page, number, value: name.into() });
    let runtime = small_ring().map_err(|error| failed(&error))?;
    runtime.block_on(store.apply(change, Commit::Durable)).map(drop).map_err(|error| failed(&error))
}

/// A ring for the store's operations: the thread that opens units has none of its own.
fn small_ring() -> std::io::Result<Runtime> {
    let small = runtime::Config {
        entries: 64,
        spin_us: 0,
        pool_bytes: 32 << 20,
        recv_buffers: 2,
        ..runtime::Config::default()
    };
    Runtime::new(small)
}
