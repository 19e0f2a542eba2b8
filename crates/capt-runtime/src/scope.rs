//! Which objects an installation looks after, and which it leaves alone for now.

use capt_api::names::{annotation, label};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The part of the management cluster that this process works on, from `--namespace` and `--watch-filter`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    namespace: Option<String>,
    filter: Option<String>,
}

impl Scope {
    /// Empty texts mean "no limit", as an unset variable in a manifest does.
    pub fn new(namespace: Option<&str>, filter: Option<&str>) -> Self {
        let set = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(Into::into);
        Self {
            namespace: set(namespace),
            filter: set(filter),
        }
    }

    /// The only namespace to work in, if there is one.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The value of the watch-filter label that marks our objects, if one is asked for; children carry it too.
    pub fn filter(&self) -> Option<&str> {
        self.filter.as_deref()
    }

    pub(crate) fn filter_selector(&self) -> Option<String> {
        Some(format!("{}={}", label::WATCH_FILTER, self.filter()?))
    }
}

/// Whether the object itself asks for a pause. (Its Cluster may ask too, in `spec.paused`.) The annotation's value does
/// not matter, as everywhere in Cluster API.
pub fn has_paused_annotation(metadata: &ObjectMeta) -> bool {
    has_annotation(metadata, annotation::PAUSED)
}

/// Whether something else looks after this infrastructure object, so that we only read it.
pub fn is_externally_managed(metadata: &ObjectMeta) -> bool {
    has_annotation(metadata, annotation::MANAGED_BY)
}

/// Whether `clusterctl move` is deleting this object because it lives on in another management cluster. Nothing that it
/// stands for may be touched any more.
pub fn is_being_moved(metadata: &ObjectMeta) -> bool {
    has_annotation(metadata, annotation::DELETE_FOR_MOVE)
}

/// The finalizers of others on this object, for a message; `None` without any. Those of the garbage collector go by themselves.
pub fn foreign_finalizers(metadata: &ObjectMeta, ours: &[&str]) -> Option<String> {
    const GARBAGE_COLLECTOR: [&str; 2] = ["foregroundDeletion", "orphan"];
    let known = |name: &str| ours.contains(&name) || GARBAGE_COLLECTOR.contains(&name);
    let foreign = metadata.finalizers.iter().flatten().map(String::as_str);
    let foreign: Vec<&str> = foreign.filter(|name| !known(name)).collect();
    (!foreign.is_empty()).then(|| foreign.join(", "))
}

/// The same for an object that is being deleted and that nothing of ours keeps any more.
pub fn left_to_others(metadata: &ObjectMeta, ours: &[&str]) -> Option<String> {
    let is_ours = |name: &String| ours.contains(&name.as_str());
    let is_kept = metadata.deletion_timestamp.is_none() || metadata.finalizers.iter().flatten().any(is_ours);
    foreign_finalizers(metadata, ours).filter(|_| !is_kept)
}

fn has_annotation(metadata: &ObjectMeta, name: &str) -> bool {
    metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn empty_means_unlimited() {
        let scope = Scope::new(Some(""), Some(""));
        assert_eq!(scope, Scope::default());
        assert_eq!(scope.filter_selector(), None);
    }

    #[test]
    fn the_filter_is_a_label_selector() {
        let scope = Scope::new(Some("team-a"), Some("blue"));
        assert_eq!(scope.namespace(), Some("team-a"));
        assert_eq!(scope.filter_selector().unwrap(), "cluster.x-k8s.io/watch-filter=blue");
    }

    #[test]
    fn annotations_count_whatever_their_value() {
        let annotated = |name: &str, value: &str| ObjectMeta {
            annotations: Some([(name.to_string(), value.to_string())].into()),
            ..ObjectMeta::default()
        };
        for value in ["", "true", "false"] {
            assert!(has_paused_annotation(&annotated("cluster.x-k8s.io/paused", value)));
            assert!(is_externally_managed(&annotated("cluster.x-k8s.io/managed-by", value)));
            assert!(is_being_moved(&annotated(
                "clusterctl.cluster.x-k8s.io/delete-for-move",
                value
            )));
        }
        assert!(!has_paused_annotation(&annotated("other", "")));
        assert!(!has_paused_annotation(&ObjectMeta::default()));
    }

    #[test]
    fn the_finalizers_of_others_are_named_and_count_when_ours_are_gone() {
        let meta = |finalizers: &[&str], deleting: bool| -> ObjectMeta {
            let mut meta = ObjectMeta {
                finalizers: Some(finalizers.iter().map(ToString::to_string).collect()),
                ..ObjectMeta::default()
            };
            if deleting {
                meta.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
            }
            meta
        };
        let some = |text: &str| Some(text.to_owned());
        for (finalizers, foreign, left) in [
            (&[][..], None, None),
            (&["ours"], None, None),
            (&["foregroundDeletion", "orphan"], None, None),
            (&["a/x", "ours"], some("a/x"), None),
            (
                &["a/x", "foregroundDeletion", "b/y"],
                some("a/x, b/y"),
                some("a/x, b/y"),
            ),
        ] {
            assert_eq!(
                foreign_finalizers(&meta(finalizers, true), &["ours"]),
                foreign,
                "{finalizers:?}"
            );
            assert_eq!(
                left_to_others(&meta(finalizers, true), &["ours"]),
                left,
                "{finalizers:?}"
            );
            assert_eq!(
                left_to_others(&meta(finalizers, false), &["ours"]),
                None,
                "{finalizers:?}"
            );
        }
    }
}
