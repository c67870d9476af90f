// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How caps are undone when the process that set them is gone: by the saved state in sockets' storage (bpf/saved.h), whose map is pinned and
//! held by the watchdog; where that cannot be had, by every value that was ever put on a socket. Input: the journal of
//! sockets. Output: a line for each socket that was restored.

use std::ffi::OsStr;
use std::fs;

use anyhow::{Context as _, Result, anyhow, bail};
use libbpf_rs::{MapCore as _, MapHandle, MapType};
use serde::{Deserialize, Serialize};

use super::clear::{Clear, LAYOUT, TreatedSocket};
use crate::journal::register::{JournalFile, UndoHandler};
use crate::journal::{Entry, Irreversible};
use crate::kernel::own_netns;
use crate::pins::SAVED_SOCKETS;
use crate::place::Place;

/// Written down before the first cap.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CapEntry {
    /// Each socket carries a mark, in the map of this number.
    Marked { map_id: u32 },
    /// Every clamp of this many segments.
    Value(u32),
}

pub const UNDO: UndoHandler = UndoHandler::of::<CapEntry>(JournalFile::Sockets);

impl Entry for CapEntry {
    fn restore(&self, dry_run: bool) -> Result<Vec<String>> {
        match self {
            Self::Marked { map_id } => undo_marked(*map_id, dry_run),
            Self::Value(value) => undo_values(&[*value], dry_run),
        }
    }

    /// All values in one scan over the sockets.
    fn restore_all(entries: &[Self], dry_run: bool) -> Vec<Result<Vec<String>>> {
        let value = |entry: &Self| match entry {
            Self::Value(value) => Some(*value),
            Self::Marked { .. } => None,
        };
        let values: Vec<u32> = entries.iter().filter_map(value).collect();
        let by_value = undo_values(&values, dry_run).map_err(|error| format!("{error:#}"));
        let mut cleared = by_value.as_ref().ok().cloned();
        let outcome = |entry: &Self| match (entry, &by_value) {
            (Self::Marked { .. }, _) => entry.restore(dry_run),
            (Self::Value(_), Ok(_)) => Ok(cleared.take().unwrap_or_default()),
            (Self::Value(_), Err(error)) => Err(anyhow!("{error}")),
        };
        entries.iter().map(outcome).collect()
    }
}

fn undo_marked(map_id: u32, dry_run: bool) -> Result<Vec<String>> {
    // By the number first, which takes no look at a file.
    let place = Place::here()?;
    let mut saved = of_number(&place, map_id);
    if !matches!(saved, Ok(Some(_))) {
        saved = pinned(&place).map_or(saved, |pinned| Ok(Some(pinned)));
    }
    let Some(saved) = saved.context("cannot open the saved state of sockets")? else {
        return Err(anyhow!(Irreversible).context(
            "the saved state of sockets is gone, so caps may remain in this network namespace; each ends with its socket",
        ));
    };
    undo(Some(&saved), &[], dry_run)
}

fn undo_values(values: &[u32], dry_run: bool) -> Result<Vec<String>> {
    if values.is_empty() {
        return Ok(Vec::new());
    }
    undo(None, values, dry_run)
}

fn undo(saved: Option<&MapHandle>, values: &[u32], dry_run: bool) -> Result<Vec<String>> {
    let clear = Clear::open(own_netns()?, saved, dry_run);
    let found = clear
        .context("caps may be left on sockets; try `giveway revert` again")?
        .run(values)?;
    let refused = found.iter().filter(|one| one.error.is_some()).count();
    if let Some(errno) = found.iter().find_map(|one| one.error) {
        bail!(
            "the kernel refused to undo {refused} of {} sockets (errno {errno}); try `giveway revert` again",
            found.len()
        );
    }
    if let Some(newer) = found.iter().map(|one| one.layout).find(|layout| *layout > LAYOUT) {
        bail!(
            "a newer giveway has changed sockets here (its saved state has layout {newer}, this version knows up to {LAYOUT}); they are \
             left alone: run the newer one's `giveway revert`"
        );
    }
    Ok(found.iter().map(TreatedSocket::to_string).collect())
}

/// The saved state of this namespace.
pub fn pinned(place: &Place) -> Option<MapHandle> {
    let saved = place
        .pins()
        .with_existing(|folder| Ok(MapHandle::from_pinned_path(folder.join(SAVED_SOCKETS)).ok()));
    saved.ok().flatten().flatten()
}

/// As any process still holds them. None where the map of this number is something else.
pub fn of_number(place: &Place, map_id: u32) -> Result<Option<MapHandle>> {
    let is_ours = |map: &MapHandle| map.map_type() == MapType::SkStorage && map.name() == OsStr::new(SAVED_SOCKETS);
    Ok(place.pins().map(map_id, SAVED_SOCKETS)?.filter(is_ours))
}

/// Pins the map of saved state, unless it is pinned; returns its id.
pub fn keep(saved: &mut MapHandle, place: &Place) -> Result<u32> {
    let map_id = saved.info().context("cannot query the saved state")?.info.id;
    place.pins().make(|folder| {
        let path = folder.join(SAVED_SOCKETS);
        let pinned = MapHandle::from_pinned_path(&path).ok();
        if pinned.is_some_and(|pinned| pinned.info().is_ok_and(|about| about.info.id == map_id)) {
            return Ok(());
        }
        let _ = fs::remove_file(&path);
        saved
            .pin(&path)
            .with_context(|| format!("cannot pin the saved state at {}", path.display()))
    })?;
    Ok(map_id)
}
