//! One pass of the provider over one Workspace, with its writes in its order.
//!
//! The order is the behaviour: each write to the object brings back the server's status and so forgets what the pass
//! had put into it, which is why outputs are absent right after the first apply. Steps are decided in `step`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DynamicObject, PartialObjectMeta, PostParams};
use kube::core::ApiResource;
use kube::runtime::controller::Action;
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::configs::ProviderConfigs;
use super::connection::{self, Details};
use super::inputs::Inputs;
use super::module::{Assignment, Desired, Diagnostic, Module};
use super::state::{Backend, Opened, State};
use super::status::{Report, Status, seconds};
use super::step::{self, Gate, Observation, Step};
use super::workspace::{self, Policy, Spec};
use super::{Settings, terraform};

/// The delays of the provider's queue for an object that keeps being requeued.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// How often the annotation that records the outcome of a creation is tried again.
const CRITICAL_ATTEMPTS: u32 = 5;

/// Everything that the passes over one kind share.
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) resource: ApiResource,
    pub(super) configs: ProviderConfigs,
    pub(super) backend: Arc<Backend>,
    pub(super) settings: Settings,
    retries: Mutex<HashMap<String, u32>>,
}

/// What the watch delivers: a pass reads the rest itself.
pub(super) type Trigger = PartialObjectMeta<DynamicObject>;

/// When the object is looked at again, if no event comes first.
enum Outcome {
    /// After the object's growing delay.
    Requeue,
    /// After the poll interval.
    Poll,
    Done,
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}

impl Context {
    pub(super) fn new(
        client: Client,
        resource: ApiResource,
        configs: ProviderConfigs,
        backend: Arc<Backend>,
        settings: Settings,
    ) -> Self {
        Self {
            client,
            resource,
            configs,
            backend,
            settings,
            retries: Mutex::default(),
        }
    }

    /// Forgets the delay of an object that no longer exists.
    pub(super) fn forget(&self, namespace: Option<&str>, name: &str) {
        self.retry_table().remove(&queue_key(namespace, name));
    }

    fn backoff(&self, namespace: Option<&str>, name: &str) -> Duration {
        let mut retries = self.retry_table();
        let failures = retries.entry(queue_key(namespace, name)).or_default();
        let delay = retry_delay(*failures);
        *failures = failures.saturating_add(1);
        delay
    }

    fn retry_table(&self) -> std::sync::MutexGuard<'_, HashMap<String, u32>> {
        // Whole after every operation, so a panic elsewhere does not spoil it.
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn retry_delay(failures: u32) -> Duration {
    let doubled = FIRST_RETRY.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
    doubled.min(LAST_RETRY)
}

fn queue_key(namespace: Option<&str>, name: &str) -> String {
    format!("{}/{name}", namespace.unwrap_or_default())
}

pub(super) async fn reconcile(object: Arc<Trigger>, context: Arc<Context>) -> Result<Action, kube::Error> {
    let namespace = object.metadata.namespace.as_deref();
    let name = object.name_any();
    let outcome = match Pass::begin(&context, namespace, &name).await {
        Ok(Some(mut pass)) => pass.run().await,
        Ok(None) => Ok(Outcome::Done),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(Outcome::Requeue) => Ok(Action::requeue(context.backoff(namespace, &name))),
        // Someone wrote to the object meanwhile: the provider says nothing and comes again.
        Err(error) if is_conflict(&error) => Ok(Action::requeue(context.backoff(namespace, &name))),
        Err(error) => Err(error),
        Ok(Outcome::Poll) => {
            context.forget(namespace, &name);
            Ok(Action::requeue(context.settings.poll))
        }
        Ok(Outcome::Done) => {
            context.forget(namespace, &name);
            Ok(Action::await_change())
        }
    }
}

pub(super) fn on_error(object: Arc<Trigger>, error: &kube::Error, context: Arc<Context>) -> Action {
    let name = object.name_any();
    tracing::warn!(workspace = name, %error, "pass ended early");
    Action::requeue(context.backoff(object.metadata.namespace.as_deref(), &name))
}

struct Pass<'a> {
    context: &'a Context,
    api: Api<DynamicObject>,
    object: DynamicObject,
    status: Status,
    spec: Spec,
    policy: Policy,
}

/// A Terraform workspace that is selected, and the module to run in it.
struct Connection {
    workspace: String,
    module: Module,
    environment: Vec<Assignment>,
    opened: Opened,
}

impl<'a> Pass<'a> {
    /// Reads the object anew: with the cache, which lags behind this program's own writes, most second passes of a
    /// creation would end in a conflict and a second's delay.
    async fn begin(context: &'a Context, namespace: Option<&str>, name: &str) -> Result<Option<Self>, kube::Error> {
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(context.client.clone(), namespace, &context.resource),
            None => Api::all_with(context.client.clone(), &context.resource),
        };
        let Some(object) = api.get_opt(name).await? else {
            return Ok(None);
        };
        let spec = workspace::spec(&object).map_err(kube::Error::SerdeError)?;
        let status = Status::read(&object.data).map_err(kube::Error::SerdeError)?;
        Ok(Some(Self {
            context,
            api,
            object,
            status,
            policy: Policy::of(&spec),
            spec,
        }))
    }

    async fn run(&mut self) -> Result<Outcome, kube::Error> {
        let gate = step::gate(&self.object, &self.policy);
        match gate {
            Gate::Paused => return self.conclude([Report::Paused], Outcome::Done).await,
            Gate::UnsupportedPolicy => {
                let message = format!(
                    "`spec.managementPolicies` is set to a value([{}]) which is not supported. \
                     Check docs for supported policies",
                    self.policy.listed()
                );
                return self.conclude([Report::Error(message)], Outcome::Done).await;
            }
            Gate::Orphan => return self.release().await,
            Gate::CreateIncomplete | Gate::Proceed => {}
        }
        if workspace::external_name(&self.object).is_none() {
            let name = self.object.name_any();
            workspace::annotate(&mut self.object, workspace::EXTERNAL_NAME, name);
            self.update().await?;
        }
        if gate == Gate::CreateIncomplete {
            let message = "cannot determine creation result - remove the crossplane.io/external-create-pending \
                           annotation if it is safe to proceed";
            return self
                .conclude([Report::Creating, Report::Error(message.to_owned())], Outcome::Done)
                .await;
        }
        let mut connection = match self.connect().await {
            Ok(connection) => connection,
            Err(reason) => return self.fail("connect failed", reason).await,
        };
        let seen = match self.observe(&mut connection).await {
            Ok(seen) => seen,
            Err(reason) => return self.fail("observe failed", reason).await,
        };
        let grace = self.context.settings.creation_grace;
        match step::next(&self.object, &self.policy, seen, grace, Timestamp::now()) {
            Step::ReportAbsent => {
                self.fail("observe failed", "external resource does not exist".to_owned())
                    .await
            }
            Step::AwaitExistence | Step::AwaitFinalizers => Ok(Outcome::Requeue),
            Step::Destroy => self.destroy(connection).await,
            Step::Release => self.release().await,
            proceed @ (Step::Create | Step::Update | Step::Rest) => {
                if let Err(reason) = self.publish(connection::details(&connection.opened.state)).await {
                    return self.conclude([Report::Error(reason)], Outcome::Requeue).await;
                }
                if !workspace::has_finalizer(&self.object) {
                    self.object.finalizers_mut().push(workspace::FINALIZER.to_owned());
                    self.update().await?;
                }
                match proceed {
                    Step::Create => self.create(connection).await,
                    Step::Update => self.change(connection).await,
                    _ => self.conclude([Report::Success], Outcome::Poll).await,
                }
            }
        }
    }

    /// Resolves the ProviderConfig and the environment, initialises the module and selects the Terraform workspace.
    async fn connect(&self) -> Result<Connection, String> {
        let namespace = self.object.metadata.namespace.as_deref();
        self.context
            .configs
            .resolve(self.spec.provider_config_ref.as_ref(), namespace)
            .map_err(|reason| format!("failed to resolve provider config: {reason}"))?;
        let parameters = &self.spec.for_provider;
        let environment = self.inputs().environment(&parameters.env).await?;
        let module = self.module().map_err(|diagnostic| {
            format!(
                "cannot initialize Terraform configuration: {}",
                terraform::report(&diagnostic)
            )
        })?;
        let workspace = workspace::external_name(&self.object).unwrap_or_default().to_owned();
        let opened =
            self.context.backend.open(&workspace).await.map_err(|diagnostic| {
                format!("cannot select Terraform workspace: {}", terraform::report(&diagnostic))
            })?;
        Ok(Connection {
            workspace,
            module,
            environment,
            opened,
        })
    }

    fn module(&self) -> Result<Module, Diagnostic> {
        let parameters = &self.spec.for_provider;
        if parameters.source != "Inline" || parameters.inline_format.as_deref() != Some("JSON") {
            return Err(Diagnostic::new(
                "Unsupported by the simulator",
                "The simulator reads modules with source Inline and inlineFormat JSON only.",
            ));
        }
        Module::parse(&parameters.module)
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            client: &self.context.client,
            namespace: self.object.metadata.namespace.as_deref(),
        }
    }

    /// What a plan, an apply or a destroy evaluates; each reads the variable files again.
    async fn desired(&self, connection: &Connection) -> Result<Result<Desired, Diagnostic>, String> {
        let mut given = connection.environment.clone();
        given.extend(self.inputs().command_line(&self.spec.for_provider).await?);
        Ok(connection.module.evaluate(&connection.workspace, &given))
    }

    /// Plan, `state list` and `output`. Puts outputs and readiness into the status in hand.
    async fn observe(&mut self, connection: &mut Connection) -> Result<Observation, String> {
        let deleting = workspace::deleting(&self.object);
        let differs = match self.desired(connection).await? {
            Ok(desired) => terraform::differs(&desired, &connection.opened.state),
            // A plan may well fail once things are half gone; the destroy decides then.
            Err(_) if deleting => false,
            Err(diagnostic) => {
                return Err(format!(
                    "cannot diff (i.e. plan) Terraform configuration: {}",
                    terraform::report(&diagnostic)
                ));
            }
        };
        if deleting && connection.opened.state.resources.is_empty() {
            self.context
                .backend
                .delete(&connection.workspace)
                .await
                .map_err(|diagnostic| {
                    format!("cannot delete Terraform workspace: {}", terraform::report(&diagnostic))
                })?;
            connection.opened.state.outputs.clear();
        }
        let state = &connection.opened.state;
        self.status.at_provider = self.at_provider(state);
        if !differs {
            self.status.set_available(Timestamp::now());
        }
        Ok(Observation {
            exists: !(state.resources.is_empty() && state.outputs.is_empty()),
            up_to_date: !differs,
        })
    }

    async fn create(&mut self, mut connection: Connection) -> Result<Outcome, kube::Error> {
        workspace::annotate(&mut self.object, workspace::CREATE_PENDING, seconds(Timestamp::now()));
        self.update().await?;
        if let Err(reason) = self.apply(&mut connection).await {
            // Lost, this would leave the creation incomplete; the provider then still reports why it failed.
            if let Err(error) = self.record_creation(workspace::CREATE_FAILED).await {
                tracing::warn!(workspace = self.object.name_any(), %error, "cannot record the failed creation");
            }
            let message = format!("create failed: {reason}");
            return self
                .conclude([Report::Creating, Report::Error(message)], Outcome::Requeue)
                .await;
        }
        self.record_creation(workspace::CREATE_SUCCEEDED).await?;
        if let Err(reason) = self.publish(connection::details(&connection.opened.state)).await {
            return self
                .conclude([Report::Creating, Report::Error(reason)], Outcome::Requeue)
                .await;
        }
        self.conclude([Report::Creating, Report::Success], Outcome::Requeue)
            .await
    }

    async fn change(&mut self, mut connection: Connection) -> Result<Outcome, kube::Error> {
        if let Err(reason) = self.apply(&mut connection).await {
            return self.fail("update failed", reason).await;
        }
        self.status.at_provider = self.at_provider(&connection.opened.state);
        self.status.set_available(Timestamp::now());
        if let Err(reason) = self.publish(connection::details(&connection.opened.state)).await {
            return self.conclude([Report::Error(reason)], Outcome::Requeue).await;
        }
        self.conclude([Report::Success], Outcome::Poll).await
    }

    async fn destroy(&mut self, mut connection: Connection) -> Result<Outcome, kube::Error> {
        if let Err(reason) = self.tear_down(&mut connection).await {
            let message = format!("delete failed: {reason}");
            return self
                .conclude([Report::Deleting, Report::Error(message)], Outcome::Requeue)
                .await;
        }
        self.conclude([Report::Deleting, Report::Success], Outcome::Requeue)
            .await
    }

    async fn release(&mut self) -> Result<Outcome, kube::Error> {
        if workspace::has_finalizer(&self.object) {
            self.object.finalizers_mut().retain(|held| held != workspace::FINALIZER);
            match self.update().await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                other => other?,
            }
        }
        Ok(Outcome::Done)
    }

    /// `terraform apply`: holds the state lock for as long as it takes, and keeps what was made even when it fails.
    async fn apply(&self, connection: &mut Connection) -> Result<(), String> {
        let desired = self.desired(connection).await?;
        let applied = async {
            let desired = desired?;
            let _lock = self.context.backend.lock(&connection.workspace)?;
            tokio::time::sleep(self.context.settings.apply + desired.faults.slow_apply).await;
            let made = terraform::apply(&desired, &mut connection.opened.state);
            self.context.backend.save(&mut connection.opened).await?;
            made
        };
        applied.await.map_err(|diagnostic| {
            format!(
                "cannot apply Terraform configuration: {}",
                terraform::report(&diagnostic)
            )
        })
    }

    async fn tear_down(&self, connection: &mut Connection) -> Result<(), String> {
        let desired = self.desired(connection).await?;
        let destroyed = async {
            let desired = desired?;
            let _lock = self.context.backend.lock(&connection.workspace)?;
            tokio::time::sleep(self.context.settings.destroy + desired.faults.slow_destroy).await;
            let gone = terraform::destroy(&desired.faults, &mut connection.opened.state);
            self.context.backend.save(&mut connection.opened).await?;
            gone
        };
        destroyed.await.map_err(|diagnostic| {
            format!(
                "cannot destroy Terraform configuration: {}",
                terraform::report(&diagnostic)
            )
        })
    }

    async fn publish(&self, details: Details) -> Result<(), String> {
        let wanted = self.spec.write_connection_secret_to_ref.as_ref();
        connection::publish(&self.context.client, &self.object, wanted, details).await
    }

    fn at_provider(&self, state: &State) -> Map<String, Value> {
        let mut shown = Map::new();
        let outputs: Map<String, Value> = state
            .outputs
            .iter()
            .filter(|(_, output)| !output.sensitive)
            .map(|(name, output)| (name.clone(), output.value.clone()))
            .collect();
        if !outputs.is_empty() {
            shown.insert("outputs".to_owned(), Value::Object(outputs));
        }
        shown.insert(
            "checksum".to_owned(),
            Value::String(checksum(&self.spec.for_provider.module)),
        );
        shown
    }

    /// A Terraform or API failure that the provider retries for ever.
    async fn fail(&mut self, stage: &str, reason: String) -> Result<Outcome, kube::Error> {
        self.conclude([Report::Error(format!("{stage}: {reason}"))], Outcome::Requeue)
            .await
    }

    /// Marks the conditions and writes the status with the resourceVersion in hand.
    async fn conclude<const N: usize>(
        &mut self,
        reports: [Report; N],
        outcome: Outcome,
    ) -> Result<Outcome, kube::Error> {
        let now = Timestamp::now();
        for report in reports {
            self.status.mark(report, self.object.metadata.generation, now);
        }
        let status = serde_json::to_value(&self.status).map_err(kube::Error::SerdeError)?;
        if let Some(data) = self.object.data.as_object_mut() {
            data.insert("status".to_owned(), status);
        }
        self.api
            .replace_status(&self.object.name_any(), &PostParams::default(), &self.object)
            .await?;
        Ok(outcome)
    }

    /// Replaces the object; the answer, the server's status included, becomes the object in hand.
    async fn update(&mut self) -> Result<(), kube::Error> {
        let name = self.object.name_any();
        let updated = self.api.replace(&name, &PostParams::default(), &self.object).await?;
        self.adopt(updated)
    }

    fn adopt(&mut self, object: DynamicObject) -> Result<(), kube::Error> {
        self.status = Status::read(&object.data).map_err(kube::Error::SerdeError)?;
        self.object = object;
        Ok(())
    }

    /// Writes an annotation that must not be lost, onto whatever the object has become meanwhile.
    async fn record_creation(&mut self, key: &str) -> Result<(), kube::Error> {
        let mut wanted = self.object.metadata.annotations.clone().unwrap_or_default();
        wanted.insert(key.to_owned(), seconds(Timestamp::now()));
        let mut attempt = 1;
        loop {
            self.object.annotations_mut().extend(wanted.clone());
            match self.update().await {
                Err(error) if is_conflict(&error) && attempt < CRITICAL_ATTEMPTS => {
                    let current = self.api.get(&self.object.name_any()).await?;
                    self.adopt(current)?;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }
}

/// Stands for the provider's digest of its working directory: changes with the module, means nothing else.
fn checksum(module: &str) -> String {
    let digest = Sha256::digest(module.as_bytes());
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_slow_down_to_a_minute_and_never_stop() {
        let seconds: Vec<u64> = (0..9).map(|failures| retry_delay(failures).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(retry_delay(u32::MAX), LAST_RETRY);
    }
}
