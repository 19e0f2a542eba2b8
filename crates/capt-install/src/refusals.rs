//! A Job's Role is made just before the Job, and the API server learns of it in its own time: until then it refuses what the Role
//! permits. Nothing in the answer tells that from a Role that lacks a permission; only time does.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// As long as the controllers wait before they call a permission missing.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);

/// Asks until it is not refused any more, or has been for too long.
pub(crate) async fn outwait<T>(ask: impl AsyncFn() -> kube::Result<T>) -> kube::Result<T> {
    let begun = Instant::now();
    loop {
        match ask().await {
            Err(kube::Error::Api(status)) if status.is_forbidden() && begun.elapsed() < PATIENCE => sleep(PAUSE).await,
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn refused(code: u16, reason: &str) -> kube::Error {
        kube::Error::Api(Status::failure("no", reason).with_code(code).boxed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_role_that_is_known_late_is_waited_for() {
        let begun = Instant::now();
        let answer = outwait(async || match begun.elapsed() < Duration::from_secs(20) {
            true => Err(refused(403, "Forbidden")),
            false => Ok("allowed"),
        });
        assert_eq!(answer.await.unwrap(), "allowed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_role_that_lacks_a_permission_is_told_of() {
        let begun = Instant::now();
        let error = outwait(async || Err::<(), _>(refused(403, "Forbidden")))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, kube::Error::Api(status) if status.is_forbidden()),
            "{error}"
        );
        assert!((PATIENCE..PATIENCE * 2).contains(&begun.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn any_other_answer_counts_at_once() {
        let begun = Instant::now();
        let error = outwait(async || Err::<(), _>(refused(404, "NotFound")))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, kube::Error::Api(status) if status.is_not_found()),
            "{error}"
        );
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
