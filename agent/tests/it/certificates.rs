//! How a machine becomes a node, and stays one.

use crate::rig::{Agent, script};

fn words(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_server_is_known_by_the_fingerprint_of_its_authority() {
    let mut agent = Agent::new().await;
    let wrong = agent
        .enrol(&["--token", "token", "--ca-sha256", &"00".repeat(32)])
        .await;
    assert!(!wrong.status.success());
    assert!(words(&wrong).contains("SHA-256"), "{}", words(&wrong));
    let sha256 = agent.server.ca_sha256.clone();
    let well = agent
        .enrol(&["--token", "token", "--ca-sha256", &sha256])
        .await;
    assert!(well.status.success(), "{}", words(&well));
    assert!(String::from_utf8_lossy(&well.stdout).contains("enrolled as n1 in pool h100"));
    agent.start().await;
}

#[tokio::test]
async fn a_token_that_is_not_known_and_a_second_enrolment_are_refused_in_words() {
    let agent = Agent::new().await;
    let ca = agent.server.ca_file.to_str().expect("a path").to_owned();
    let unknown = agent.enrol(&["--token", "another", "--ca", &ca]).await;
    assert!(
        words(&unknown).contains("the join token is not known"),
        "{}",
        words(&unknown)
    );
    agent.enrol_well().await;
    let again = agent.enrol(&["--token", "token", "--ca", &ca]).await;
    assert!(words(&again).contains("--replace"), "{}", words(&again));
    let replaced = agent
        .enrol(&["--token", "token", "--ca", &ca, "--replace"])
        .await;
    assert!(replaced.status.success(), "{}", words(&replaced));
}

#[tokio::test]
async fn a_server_that_has_moved_is_found_where_the_settings_say() {
    let mut agent = Agent::enrolled().await;
    let file = agent.state().join("identity/identity.json");
    let here = agent.server.url.clone();
    let identity = std::fs::read_to_string(&file).expect("an identity");
    // As if it had enrolled where nobody listens any more.
    std::fs::write(&file, identity.replace(&here, "https://127.0.0.1:1")).expect("written");
    agent.arguments = vec!["--server".to_owned(), here];
    agent.start().await;
}

#[tokio::test]
async fn a_certificate_is_renewed_while_the_connection_goes_on_and_used_in_the_next() {
    let mut agent = Agent::new().await;
    agent.server.inner().renew_after_seconds = 1;
    agent.enrol_well().await;
    agent.start().await;
    agent
        .server
        .wait("renewals", |inner| (inner.renewals >= 2).then_some(()))
        .await;
    assert_eq!(
        agent.server.inner().hellos.len(),
        1,
        "the connection went on"
    );
    agent.server.drop_connection();
    agent
        .server
        .wait("another connection", |inner| {
            (inner.hellos.len() > 1).then_some(())
        })
        .await;
    let used = agent.server.inner().connection_certificates.clone();
    assert_ne!(used[0], used[1]);
}

#[tokio::test]
async fn a_node_whose_certificate_expired_comes_back_by_itself() {
    let mut agent = Agent::new().await;
    agent.server.inner().issue_expired = true;
    agent.enrol_well().await;
    agent.start().await;
    assert_eq!(agent.server.inner().renewals, 1);
    let job = script("exit 0");
    agent.server.desire(std::slice::from_ref(&job)).await;
    assert_eq!(agent.server.exited(&job.id).await.code, Some(0));
}

#[tokio::test]
async fn a_machine_that_is_not_enrolled_says_what_to_do() {
    let mut agent = Agent::new().await;
    agent.launch();
    let log = agent.folder.path().join("agent.log");
    crate::rig::until("it says so", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("allotment-agent enrol"))
    })
    .await;
}

#[tokio::test]
async fn a_join_token_is_never_sent_in_clear() {
    use tokio::io::AsyncReadExt as _;
    let mut agent = Agent::enrolled().await;
    let sha256 = agent.server.ca_sha256.clone();
    let ca = agent.server.ca_file.display().to_string();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let plain = format!("http://{}", listener.local_addr().expect("an address"));
    let heard = tokio::spawn(async move {
        let (mut caller, _) = listener.accept().await.expect("a call");
        let mut said = Vec::new();
        // Whatever ends it, what was said until then counts.
        let _ = caller.read_to_end(&mut said).await;
        said
    });
    agent.server.url.clone_from(&plain);
    for trust in [["--ca-sha256", &sha256], ["--ca", &ca]] {
        let refused = agent
            .enrol(&["--token", "token", "--replace", trust[0], trust[1]])
            .await;
        let words = words(&refused);
        assert!(!refused.status.success());
        assert!(
            words.contains("server: ") && words.contains(&plain) && words.contains("https://"),
            "{words}"
        );
    }
    let config = agent.folder.path().join("agent.toml");
    std::fs::write(&config, format!("server = '{plain}'\n")).expect("written");
    agent.arguments = vec!["--config".to_owned(), config.display().to_string()];
    agent.launch();
    let log = agent.folder.path().join("agent.log");
    crate::rig::until("the agent says why not", || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("write it with https://"))
    })
    .await;
    assert!(!heard.is_finished(), "nobody called");
    heard.abort();
}

#[tokio::test]
async fn the_agent_of_a_retired_node_ends_with_a_sentence() {
    let mut agent = Agent::running().await;
    agent.server.inner().retired = true;
    agent.server.drop_connection();
    let ended = crate::rig::eventually("it ends by itself", || agent.ended()).await;
    assert_eq!(ended.code(), Some(3));
    let log = agent.log();
    assert!(
        log.contains("node n1 is retired and holds nothing any more"),
        "{log}"
    );
}

#[tokio::test]
async fn an_agent_that_holds_work_stays_though_its_node_is_retired_and_says_so_once() {
    let mut agent = Agent::running().await;
    let job = script("sleep 600");
    agent.server.desire(std::slice::from_ref(&job)).await;
    agent.server.started(&job.id).await;
    agent.server.inner().retired = true;
    agent.server.drop_connection();
    agent
        .server
        .wait("four tries", |inner| (inner.denials >= 4).then_some(()))
        .await;
    assert_eq!(agent.ended(), None);
    let log = agent.log();
    let told = log
        .lines()
        .filter(|line| line.contains("WARN") && line.contains("is retired"))
        .count();
    assert_eq!(told, 1, "{log}");
}
