//! The fields of one manager inside one object: compare them, check them, and find what others left in them.
//!
//! A path of the ownership table (`status.phase`, `status.conditions[Ready]`) owns everything below it. All of this is
//! pure: JSON in, a verdict or JSON patch operations out.

use json_patch::PatchOperation;
use serde_json::Value;

use super::edit;

/// One step of an owned path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A member of an object.
    Field(&'static str),
    /// An entry: of a list of conditions by its type, of a map by its key.
    Entry(&'static str),
}

/// A parsed row of the ownership table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnedPath(Vec<Step>);

impl OwnedPath {
    /// Dots separate fields; what stands in brackets is one key, dots included.
    pub(super) fn parse(path: &'static str) -> Self {
        let mut steps = Vec::new();
        let mut rest = path;
        while !rest.is_empty() {
            if let Some((key, after)) = rest.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
                steps.push(Step::Entry(key));
                rest = after.strip_prefix('.').unwrap_or(after);
                continue;
            }
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (field, after) = rest.split_at(end);
            steps.push(Step::Field(field));
            rest = after.strip_prefix('.').unwrap_or(after);
        }
        Self(steps)
    }

    pub(super) fn starts_with(&self, root: &str) -> bool {
        matches!(self.0.first(), Some(Step::Field(first)) if *first == root)
    }

    /// The value here, and the JSON pointer's tokens that lead to it. `null` counts as absent: the API server drops it.
    fn find<'v>(&self, document: &'v Value) -> Option<(Vec<String>, &'v Value)> {
        let mut tokens = Vec::with_capacity(self.0.len());
        let mut here = document;
        for step in &self.0 {
            let (token, next) = match (step, here) {
                (Step::Field(name) | Step::Entry(name), Value::Object(members)) => {
                    ((*name).to_owned(), members.get(*name)?)
                }
                (Step::Entry(key), Value::Array(entries)) => entries
                    .iter()
                    .enumerate()
                    .find(|(_, entry)| entry_key(entry) == Some(*key))
                    .map(|(index, entry)| (index.to_string(), entry))?,
                _ => return None,
            };
            tokens.push(token);
            here = next;
        }
        (!here.is_null()).then_some((tokens, here))
    }
}

/// What tells the entries of a `listType=map` list of conditions apart.
fn entry_key(entry: &Value) -> Option<&str> {
    entry.get("type").and_then(Value::as_str)
}

/// Whether every owned field has the same value in both, absent ones included.
pub(super) fn same(owned: &[OwnedPath], cached: &Value, desired: &Value) -> bool {
    owned.iter().all(|path| match (path.find(cached), path.find(desired)) {
        (None, None) => true,
        (Some((_, cached)), Some((_, desired))) => equal(cached, desired),
        _ => false,
    })
}

/// Equality in which a `null` member is an absent one.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let absent = |value: Option<&Value>| value.is_none_or(Value::is_null);
            a.iter().all(|(key, value)| match b.get(key) {
                Some(other) => equal(value, other),
                None => value.is_null(),
            }) && b.iter().all(|(key, value)| value.is_null() || !absent(a.get(key)))
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        _ => a == b,
    }
}

/// The first field of `desired` that is not among the owned ones, as people write paths.
pub(super) fn first_unowned(owned: &[OwnedPath], desired: &Value) -> Option<String> {
    let candidates: Vec<&[Step]> = owned.iter().map(|path| path.0.as_slice()).collect();
    unowned_below(&candidates, desired, String::new())
}

/// `candidates` are the rests of the owned paths that lead through this place.
fn unowned_below(candidates: &[&[Step]], here: &Value, at: String) -> Option<String> {
    if here.is_null() || candidates.iter().any(|rest| rest.is_empty()) {
        return None;
    }
    // An empty object between here and an owned field says nothing about anybody's field.
    let through = |key: &str, entry_only: bool| -> Vec<&[Step]> {
        candidates
            .iter()
            .filter_map(|rest| match rest.split_first() {
                Some((Step::Field(name), tail)) if !entry_only && *name == key => Some(tail),
                Some((Step::Entry(name), tail)) if *name == key => Some(tail),
                _ => None,
            })
            .collect()
    };
    match here {
        Value::Object(members) if !candidates.is_empty() => members.iter().find_map(|(name, value)| {
            let at = if at.is_empty() {
                name.clone()
            } else {
                format!("{at}.{name}")
            };
            unowned_below(&through(name, false), value, at)
        }),
        Value::Array(entries) if !candidates.is_empty() => entries.iter().find_map(|entry| {
            let key = entry_key(entry).unwrap_or_default();
            unowned_below(&through(key, true), entry, format!("{at}[{key}]"))
        }),
        _ => Some(at),
    }
}

/// The operations that remove from `live` what stands in owned fields and is not wished for.
///
/// Server-side apply only takes away what the same manager applied before. What another one wrote into our fields (the
/// Go version, an older release under another manager, a person) would stay for ever, and so would the difference.
pub(super) fn leftovers(owned: &[OwnedPath], live: &Value, desired: &Value) -> Vec<PatchOperation> {
    let mut removed_entries: Vec<Vec<String>> = Vec::new();
    let mut operations = Vec::new();
    for path in owned {
        let Some((tokens, value)) = path.find(live) else {
            continue;
        };
        match path.find(desired) {
            Some((_, wished)) => surplus(tokens, value, wished, &mut operations),
            None => removed_entries.push(tokens),
        }
    }
    // Removing an entry moves those behind it: the last goes first. (Numbers before the comparison: "10" < "9".)
    removed_entries.sort_by_key(|tokens| {
        std::cmp::Reverse(
            tokens
                .last()
                .and_then(|last| last.parse::<usize>().ok())
                .unwrap_or_default(),
        )
    });
    // Operations inside surviving entries come first: their indexes are still those of `live`.
    operations.extend(removed_entries.iter().map(edit::remove));
    operations
}

/// What `live` has beyond `wished`. A scalar that differs is the server's own spelling of what was applied, not a
/// leftover: writing it again would never end.
fn surplus(at: Vec<String>, live: &Value, wished: &Value, operations: &mut Vec<PatchOperation>) {
    match (live, wished) {
        (Value::Object(live), Value::Object(wished)) => {
            for (key, value) in live {
                let mut at = at.clone();
                at.push(key.clone());
                match wished.get(key).filter(|wished| !wished.is_null()) {
                    Some(wished) => surplus(at, value, wished, operations),
                    None if value.is_null() => {}
                    None => operations.push(edit::remove(&at)),
                }
            }
        }
        // A keyed list keeps the entries that others made, and the order in which they came.
        (Value::Array(live), Value::Array(wished)) if live.len() != wished.len() || reordered(live, wished) => {
            operations.push(edit::replace(&at, Value::Array(wished.clone())));
        }
        (Value::Array(live), Value::Array(wished)) => {
            for (index, (live, wished)) in live.iter().zip(wished).enumerate() {
                let mut at = at.clone();
                at.push(index.to_string());
                surplus(at, live, wished, operations);
            }
        }
        _ => {}
    }
}

/// The same entries in another order.
fn reordered(live: &[Value], wished: &[Value]) -> bool {
    live != wished && wished.iter().all(|entry| live.contains(entry)) && live.iter().all(|entry| wished.contains(entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use json_patch::Patch;
    use proptest::prelude::*;
    use serde_json::json;

    fn paths(paths: &[&'static str]) -> Vec<OwnedPath> {
        paths.iter().map(|path| OwnedPath::parse(path)).collect()
    }

    fn condition(kind: &str, status: &str) -> Value {
        json!({"type": kind, "status": status})
    }

    #[test]
    fn a_key_in_brackets_keeps_its_dots() {
        assert_eq!(
            OwnedPath::parse("metadata.annotations[capt.dev/a.b].c").0,
            [
                Step::Field("metadata"),
                Step::Field("annotations"),
                Step::Entry("capt.dev/a.b"),
                Step::Field("c")
            ]
        );
        assert_eq!(
            OwnedPath::parse("status.conditions[Ready]").0,
            [Step::Field("status"), Step::Field("conditions"), Step::Entry("Ready")]
        );
    }

    #[test]
    fn the_same_ignores_the_fields_of_others_and_the_order_of_conditions() {
        let owned = paths(&["status.phase", "status.conditions[Ready]", "status.conditions[Failed]"]);
        let cached = json!({"status": {
            "phase": "Ready", "endpoint": "theirs",
            "conditions": [condition("EndpointReady", "True"), condition("Failed", "False"), condition("Ready", "True")],
        }});
        let desired = json!({"status": {
            "phase": "Ready",
            "conditions": [condition("Ready", "True"), condition("Failed", "False")],
        }});
        assert!(same(&owned, &cached, &desired));
        for (different, why) in [
            (
                json!({"status": {"phase": "Creating", "conditions": desired["status"]["conditions"]}}),
                "a value",
            ),
            (
                json!({"status": {"conditions": desired["status"]["conditions"]}}),
                "a field that is no longer wished for",
            ),
            (
                json!({"status": {"phase": "Ready", "conditions": [condition("Ready", "True")]}}),
                "a condition gone",
            ),
            (
                json!({"status": {"phase": "Ready", "conditions": [condition("Ready", "False"), condition("Failed", "False")]}}),
                "a condition",
            ),
        ] {
            assert!(!same(&owned, &cached, &different), "{why}");
        }
    }

    #[test]
    fn null_is_absent() {
        let owned = paths(&["status.phase", "status.waitingSince"]);
        let cached = json!({"status": {"phase": null, "waitingSince": {"vpc": null}}});
        assert!(same(&owned, &cached, &json!({"status": {"waitingSince": {}}})));
        assert!(!same(
            &owned,
            &cached,
            &json!({"status": {"waitingSince": {"vpc": "t"}}})
        ));
    }

    #[test]
    fn a_field_of_another_manager_is_named() {
        let owned = paths(&["status.endpoint", "status.conditions[EndpointReady]"]);
        for (desired, unowned) in [
            (
                json!({"status": {"endpoint": "h:1", "conditions": [condition("EndpointReady", "True")]}}),
                None,
            ),
            (json!({"status": {}}), None),
            (json!({"status": {"phase": null}}), None),
            (json!({"status": {"phase": "Ready"}}), Some("status.phase")),
            (json!({"status": {"initialization": {}}}), Some("status.initialization")),
            (
                json!({"status": {"conditions": [condition("Ready", "True")]}}),
                Some("status.conditions[Ready]"),
            ),
            (json!({"status": "text"}), Some("status")),
            (json!({"spec": {"version": "1"}}), Some("spec")),
        ] {
            assert_eq!(first_unowned(&owned, &desired).as_deref(), unowned, "{desired}");
        }
    }

    fn after(live: &Value, operations: Vec<PatchOperation>) -> Value {
        let mut document = live.clone();
        json_patch::patch(&mut document, &Patch(operations)).expect("the operations fit the document");
        document
    }

    #[test]
    fn what_others_left_goes_and_what_is_theirs_stays() {
        let owned = paths(&[
            "status.ready",
            "status.workspaceTemplateStatus",
            "status.failureDomains",
            "status.conditions[Ready]",
            "status.conditions[Old]",
            "status.conditions[Older]",
        ]);
        let live = json!({"status": {
            "ready": true,
            "endpoint": "theirs",
            "workspaceTemplateStatus": {"ready": true, "outputs": {"a": "1", "b": "2"}, "state": "left"},
            "failureDomains": [{"name": "a"}, {"name": "left"}],
            "conditions": [condition("Older", "True"), condition("Ready", "True"), condition("Foreign", "True"), condition("Old", "True")],
        }});
        let desired = json!({"status": {
            "workspaceTemplateStatus": {"ready": true, "outputs": {"a": "1"}},
            "failureDomains": [{"name": "a"}],
            "conditions": [condition("Ready", "True")],
        }});
        let cleaned = after(&live, leftovers(&owned, &live, &desired));
        assert_eq!(
            cleaned,
            json!({"status": {
                "endpoint": "theirs",
                "workspaceTemplateStatus": {"ready": true, "outputs": {"a": "1"}},
                "failureDomains": [{"name": "a"}],
                "conditions": [condition("Ready", "True"), condition("Foreign", "True")],
            }})
        );
        assert!(leftovers(&owned, &cleaned, &desired).is_empty(), "once");
    }

    #[test]
    fn lists_lose_foreign_members_and_foreign_order() {
        let owned = paths(&["status.list"]);
        for (live, wished) in [
            (
                json!([{"name": "b"}, {"name": "a"}]),
                json!([{"name": "a"}, {"name": "b"}]),
            ),
            (
                json!([{"name": "a", "left": 1}, {"name": "b"}]),
                json!([{"name": "a"}, {"name": "b"}]),
            ),
            (json!([[1, 2], [3]]), json!([[1], [3]])),
        ] {
            let live = json!({"status": {"list": live}});
            let desired = json!({"status": {"list": wished}});
            assert_eq!(after(&live, leftovers(&owned, &live, &desired)), desired);
        }
    }

    #[test]
    fn a_value_that_the_server_spells_differently_is_not_written_again() {
        let owned = paths(&["status.size"]);
        assert!(
            leftovers(
                &owned,
                &json!({"status": {"size": "1"}}),
                &json!({"status": {"size": "1000m"}})
            )
            .is_empty()
        );
    }

    const CONDITIONS: [&str; 12] = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L"];

    proptest! {
        /// Whatever stands there and whatever is wished for: afterwards the owned fields are the wished ones, and nothing
        /// else has moved.
        #[test]
        fn removing_leftovers_reaches_the_wish_and_touches_nothing_else(
            live in proptest::sample::subsequence(CONDITIONS.to_vec(), 0..=12).prop_shuffle(),
            ours in proptest::sample::subsequence(CONDITIONS.to_vec(), 0..=12),
            keep in proptest::collection::vec(any::<bool>(), 12),
            outputs in proptest::collection::btree_map("[a-c/~]{1,2}", any::<bool>(), 0..6),
        ) {
            let mut owned: Vec<OwnedPath> = ours
                .iter()
                .map(|kind| OwnedPath(vec![Step::Field("status"), Step::Field("conditions"), Step::Entry(kind)]))
                .collect();
            owned.push(OwnedPath::parse("status.outputs"));
            let list = |kinds: &mut dyn Iterator<Item = &&'static str>| -> Vec<Value> {
                kinds.map(|kind| condition(kind, "True")).collect()
            };
            let all: serde_json::Map<String, Value> = outputs.keys().map(|k| (k.clone(), json!("x"))).collect();
            let kept: serde_json::Map<String, Value> =
                outputs.iter().filter(|(_, keep)| **keep).map(|(k, _)| (k.clone(), json!("x"))).collect();
            let wanted = |kind: &&'static str| ours.contains(kind)
                && CONDITIONS.iter().position(|c| c == kind).is_some_and(|i| keep[i]);
            let live_doc = json!({"status": {"outputs": all, "conditions": list(&mut live.iter())}});
            let desired = json!({"status": {"outputs": kept, "conditions": list(&mut live.iter().filter(|kind| wanted(kind)))}});
            let cleaned = after(&live_doc, leftovers(&owned, &live_doc, &desired));
            prop_assert!(same(&owned, &cleaned, &desired));
            let expected = list(&mut live.iter().filter(|kind| !ours.contains(kind) || wanted(kind)));
            prop_assert_eq!(&cleaned["status"]["conditions"], &Value::Array(expected));
        }
    }
}
