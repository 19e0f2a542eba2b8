//! Status and owned spec fields: server-side apply of everything that this manager owns, and of nothing else.

use capt_api::ownership::{Kind, owned};
use kube::Resource;
use kube::core::object::HasStatus;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::owned::{OwnedPath, first_unowned, leftovers, same};
use super::transport::{Part, parse, unserialisable};
use super::{Edit, Objects, Outcome, Planned};
use crate::error::{Failure, Verb};

impl<K: Resource + Serialize + DeserializeOwned> Objects<K> {
    /// Makes `status` what this manager says of the object: every field it owns, those it leaves out included.
    ///
    /// - No request when the cached object already says the same; the report of every pass would otherwise be a write,
    ///   every write an event, and every event a pass.
    /// - The apply carries UID and resourceVersion, so that a report made from an old view never lands on a newer
    ///   object, nor on another one of the same name. (For the status alone the server does not look at the UID; the
    ///   version, which no other object shares, is what guards it.)
    /// - What another writer left in owned fields is removed afterwards, once: apply alone never takes away what it did
    ///   not put there.
    /// - A field that belongs to another manager is refused here, before the two could begin to overwrite each other.
    pub async fn apply_status(
        &self,
        object: &Planned<'_, K>,
        status: &K::Status,
        why: &str,
    ) -> Result<Outcome<K>, Failure>
    where
        K: HasStatus,
        K::Status: Serialize,
    {
        let status = self.json(object, status)?;
        self.apply(object, Part::Status, status, why).await
    }

    /// Like [`Self::apply_status`], for the spec fields of the object that this manager owns. `fields` is what stands
    /// below `spec`; an owned field that it lacks is removed.
    pub async fn apply_spec(&self, object: &Planned<'_, K>, fields: Value, why: &str) -> Result<Outcome<K>, Failure> {
        self.apply(object, Part::Main, fields, why).await
    }

    async fn apply(
        &self,
        object: &Planned<'_, K>,
        part: Part,
        fields: Value,
        why: &str,
    ) -> Result<Outcome<K>, Failure> {
        let at = self.planned_ref(object);
        let misuse = |what: String| Failure::Misuse {
            object: at.clone(),
            what,
        };
        let root = match part {
            Part::Status => "status",
            Part::Main => "spec",
        };
        let owned = self.owned_below(root);
        if owned.is_empty() {
            return Err(misuse(format!("{} owns no field below {root}", self.manager)));
        }
        let desired = json!({ root: fields });
        if let Some(path) = first_unowned(&owned, &desired) {
            return Err(misuse(format!("{path} is not a field of {}", self.manager)));
        }
        if same(&owned, &self.json(object, object.object)?, &desired) {
            return Ok(Outcome::Unchanged);
        }

        let mut body = desired.clone();
        if let Some(members) = body.as_object_mut() {
            members.insert("apiVersion".into(), K::api_version(&self.kind).into());
            members.insert("kind".into(), K::kind(&self.kind).into());
            members.insert(
                "metadata".into(),
                json!({
                    "name": object.name,
                    "namespace": object.namespace,
                    "uid": object.uid,
                    "resourceVersion": object.resource_version,
                }),
            );
        }
        let result = self.send_apply(&at, part, &body).await;
        self.audit(Verb::Apply, &at, Some(object.uid), why, &result);
        let live = result?;

        let surplus = leftovers(&owned, &live, &desired);
        let applied: K = parse(Verb::Apply, &at, live)?;
        if surplus.is_empty() {
            return Ok(Outcome::of(applied));
        }
        let why = "removing what another writer left in owned fields";
        let cleaned = self
            .patch_part(&Planned::new(&applied)?, part, Edit::from(surplus), why)
            .await?;
        Ok(match cleaned {
            Outcome::Unchanged => Outcome::of(applied),
            written @ Outcome::Written(_) => written,
        })
    }

    /// This manager's rows of the ownership table.
    fn owned_below(&self, root: &str) -> Vec<OwnedPath> {
        ownership_kind(&K::kind(&self.kind))
            .into_iter()
            .flat_map(|kind| owned(kind, self.manager))
            .map(OwnedPath::parse)
            .filter(|path| path.starts_with(root))
            .collect()
    }

    fn json(&self, object: &Planned<'_, K>, value: &impl Serialize) -> Result<Value, Failure> {
        serde_json::to_value(value).map_err(|error| unserialisable(&self.planned_ref(object), &error))
    }
}

/// The kinds whose own fields are applied. Children (also an apply, in its parents' hands) are changed as a whole.
fn ownership_kind(kind: &str) -> Option<Kind> {
    Some(match kind {
        "CAPTCluster" => Kind::CaptCluster,
        "CAPTControlPlane" => Kind::CaptControlPlane,
        "WorkspaceTemplate" => Kind::WorkspaceTemplate,
        "WorkspaceTemplateApply" => Kind::WorkspaceTemplateApply,
        "Tenant" => Kind::Tenant,
        _ => return None,
    })
}
