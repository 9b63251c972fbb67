# make test     every check and every test; the product's packages with the race detector
# make race     every test with the race detector, also those of the whole path, of commands and of pages (40 minutes on two cores)
# make lint     gofmt, vet, staticcheck, order of files, log messages, types on other systems, functions that no program calls, prose and names, types of the console, govulncheck (reports an unreachable database)
# make demo     relay, NATS, host-agent and a demo host in one process
# make bench    relay and host-agent beside other ways; ARGS='fanout latency' picks parts, ARGS=--record keeps the figures in docs/, ARGS=plot draws them again, ARGS=ablate does without each mechanism in turn
# make microbench  their pieces, for benchstat; BENCH='regexp' picks some, COUNT says how often
# make console-site RELAY=https://relay.example.com   the console as a static site for an origin that is not the relay's, in artifacts/console-site, with its hashes; RELAY="A B" for accounts at further relays
# make pictures  the states of the console, in artifacts/: three sizes, light and dark
# make faults   breaks every network and process under load; writes the table in docs/faults.md. ARGS="--only 'kill -9'" runs some rows, and writes nothing
# make former   the programs of an earlier commit, COMMIT=HEAD~100, work with those of this one, under load: all mixtures, and replacements; ARGS=--record=docs/versions.md writes the table
# make scale    the same tool: clusters of relays with many hosts, and a relay that knows of many tenants; ARGS="--only moves" picks rows
# make notify   tells of 1,000 sessions on 100 hosts, 25 a second, while one relay of two is killed
# make absence  clients behind ahp-connect are away for ABSENCE=9m: a frozen network, and a process that is stopped
# make waking   how soon a phone's page shows what it has missed, after WAKING=5s,1m,5m without a network: with AHP's reconnect, and on a stream that resumes
# make soak     the model of the whole path between sockets, for SOAK=10m; a failure tells the seed that repeats it
# make fuzz     each fuzz target for FUZZTIME=30s; FUZZ='regexp' picks some
# make packages a signed release installed from its apt and yum repositories, with npx, from its formulas and with its script; its images run with podman as in the compose files, without and with a certificate; publishing to stand-ins
# make release  an archive of each program, packages, images, a Helm chart, SBOMs and checksums of this commit, in dist/; ARGS='-only linux_amd64' for one system, ARGS='-key FILE' signs (RELEASING.md)
# make release-twice  the same in two clean clones, with caches of their own, compares all files, and leaves them in dist/; same ARGS
# make site     the documentation's site, in bin/site, with a generator from npm; then checks it in Chromium, with axe-core and all links
# make recording  the animated picture at the top of README, from the console in Chromium, with ffmpeg
# make apps     development servers and viewers from npm, as canvases in Chromium; APPS=DIR keeps what is installed
# make interop  the wire suite against any host: AHP_UPSTREAM=ws://127.0.0.1:18990 make interop; AHP_VERSION=0.8.0 for one of that version.
#               VS Code's host with its mock agent also gets a new user on a phone, from the first link to a merged change.
#               With AHP_WORKBENCH=…/server-main.js of a VS Code server (AHP_WORKBENCH_NODE: its node), that one's windows in Chromium too; the host needs VS Code's mock agent for that
# make agents   installs OpenCode, Gemini CLI, Claude Code and Codex from npm into ~/.cache/ahp-agents (1.4 GB), and drives each from a phone-sized browser;
#               ARGS=-record keeps recordings, which make test replays
# make clients  installs acpx and the MCP inspector from npm into ~/.cache/ahp-clients (334 MB), and drives ahp-connect's doors with them; also at the host in AHP_UPSTREAM
# make interop-copilot  part of interop: GitHub Copilot CLI's host, if test/install-copilot.sh has installed it

GO      ?= go
BENCH   ?= .
COUNT   ?= 6
SOAK    ?= 10m
FUZZ    ?= .
COMMIT  ?= HEAD~100
FUZZTIME ?= 30s
APPS    ?= $(HOME)/.cache/ahp-relay-apps
PKGS    := ./...
# Those that take longest, or wait for most of their time, begin first.
LONG    := ./gateway ./routing ./internal/connect ./broker/registry ./hostagent ./broker
# Neither these packages nor their tests start a goroutine, so the race detector has
# nothing to find here. It would take 7 times as long. A test (single_test.go) checks the list.
SINGLE  := . ./agenthost/repo ./agenthost/transcript ./ahp ./ahp/view ./auth/mcpgate ./broker/remember ./broker/waiting ./console/bundle ./gateway/api/notify ./gateway/api/people ./gateway/authn ./hostagent/waiting ./internal/acp/schema ./internal/atomicfile ./internal/meter ./internal/retryafter ./internal/sealed ./internal/unauthenticated
# The commands. Their tests run whole relays and host-agents, whose packages have raced tests
# of their own, and read flags and texts, which the race detector makes 15 times as slow.
COMMANDS := ./cmd/relay ./cmd/host-agent ./cmd/ahp-connect
# The whole path, commands, tools, pages and examples: their tests run without the race detector.
PLAIN   := ./test/browser ./test ./test/scale ./test/bench ./console/test $(COMMANDS) ./test/... ./docs/examples $(SINGLE)
PIECES  := ./agenthost ./agenthost/acp ./ahp ./broker ./auth/gate ./gateway ./gateway/admission ./hostagent ./broker/link ./auth/mcpgate ./broker/registry ./routing

.PHONY: all agents build test race lint console-site bench microbench demo notify faults former scale soak fuzz apps interop interop-copilot pictures release release-twice packages site recording

all: build

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/...

test:
	@GO="$(GO)" MAKE="$(MAKE)" PLAIN="$(PLAIN)" sh test/run.sh $(LONG) $(PKGS)

race:
	$(GO) test -race -tags lockorder -vet=off -p 2 -timeout 60m ./test/browser ./test $(LONG) $(PKGS)

# What analyses makes garbage for half of its time; with GOGC it collects less of that.
lint:
	@out="$$(gofmt -l .)"; if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	GOGC=400 $(GO) build -o bin/test/lint ./test/cmd/lint
	GOGC=400 $(GO) vet -vettool=bin/test/lint $(PKGS)
	$(GO) run ./test/cmd/prose --check
	GOGC=400 $(GO) run ./test/cmd/systems windows darwin
	@out="$$(GOGC=400 $(GO) tool deadcode ./cmd/...)" || exit; if [ -n "$$out" ]; then echo "no program calls:"; echo "$$out"; exit 1; fi
	$(GO) run ./console/build -types
	@GO="$(GO)" sh test/vulncheck.sh $(PKGS)

console-site:
	@$(GO) run ./console/site/write -relay "$(RELAY)"

bench:
	@sh test/bench/install-deps.sh
	$(GO) run ./test/cmd/bench $(ARGS)

microbench:
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) $(PIECES)

soak:
	SOAK=$(SOAK) $(GO) test -race -count=1 -timeout 0 -v -run '^TestModelSoak$$' ./routing

.PHONY: absence waking
absence:
	AHP_ABSENCE=$${ABSENCE:-9m} $(GO) test -count=1 -v -timeout 30m -run '^Test(LongAbsenceIsInvisible|StoppedProcessLosesNothing)$$' ./internal/connect ./cmd/ahp-connect

waking:
	AHP_WAKING=$${WAKING:-5s,1m,5m} $(GO) test -count=1 -v -timeout 30m -run '^TestWakingPhone$$' ./test/browser

fuzz:
	@for pkg in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' | grep -E '$(FUZZ)'); do \
			echo "== $$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

# A module of its own: what it needs to pack is nothing that the programs have.
release:
	cd packaging/release && $(GO) vet ./... && $(GO) run ./chartcheck ../helm/ahp-relay && $(GO) run . -out ../../dist $(ARGS)

release-twice:
	cd packaging/release && $(GO) run ./twice $(ARGS)

# As root on Debian; test/packages lists what it needs.
packages:
	$(GO) run ./test/packages $(ARGS)

demo:
	$(GO) run ./cmd/relay demo

pictures:
	PICTURES=1 $(GO) test -count=1 -timeout 1h ./test/browser

scale:
	$(GO) run ./test/cmd/bench scale $(ARGS)

former:
	$(GO) run ./test/cmd/former --commit $(COMMIT) $(ARGS)

notify:
	AHP_NOTIFY_HOSTS=100 AHP_NOTIFY_SESSIONS=10 AHP_NOTIFY_EVERY=40ms AHP_NOTIFY_LIMIT=2s $(GO) test -count=1 -v -run '^TestEachOfManyEventsIsNotified$$' ./test

faults:
	$(GO) run ./test/cmd/faults $(if $(ARGS),$(ARGS),--out docs/faults.md)

site:
	sh packaging/site/make.sh
	AHP_TEST_SITE=$(CURDIR)/bin/site $(GO) test -count=1 -v -run '^TestSiteIsAccessibleAndWithoutDeadLinks$$' ./test/browser

recording:
	AHP_RECORDING=$(CURDIR)/docs/console/tour.webp $(GO) test -count=1 -v -run '^TestTourIsRecorded$$' ./test/browser

apps:
	AHP_TEST_APPS=$(APPS) $(GO) test -count=1 -v -run '^TestApp' ./test/browser

interop-copilot:
	AHP_COPILOT_DIR=$${AHP_COPILOT_DIR:-$$HOME/.cache/ahp-copilot-host} $(GO) test -count=1 -v -run '^TestCopilotHost$$' ./test

agents:
	sh test/install-agents.sh
	AHP_AGENTS_DIR=$${AHP_AGENTS_DIR:-$$HOME/.cache/ahp-agents} $(GO) test -count=1 -v -timeout 40m -run '^TestReal(Agents(Fork)?|GeminiKeepsItsConversations)$$' ./agenthost/acp -args $(ARGS)
	AHP_AGENTS_DIR=$${AHP_AGENTS_DIR:-$$HOME/.cache/ahp-agents} $(GO) test -count=1 -v -timeout 20m -run '^(TestRealAgent(sOnAPhone|WhileItsMachineSleeps)|TestFirstLinkToMergedChangeWithRealAgents)$$' ./test/browser

.PHONY: clients
clients:
	sh test/install-clients.sh
	AHP_CLIENTS_DIR=$${AHP_CLIENTS_DIR:-$$HOME/.cache/ahp-clients} $(GO) test -count=1 -v -timeout 10m -run '^TestReal(ACP|MCP)Client' ./cmd/ahp-connect

interop: interop-copilot
	@if [ -z "$$AHP_UPSTREAM" ]; then echo "say which host: AHP_UPSTREAM=ws://127.0.0.1:18990 make interop"; exit 2; fi
	$(GO) test -count=1 -v -run 'TestRelayChangesNoByte|TestSealedHostChangesNoByte|TestFlows' ./test
	AHP_CLIENTS_DIR=$${AHP_CLIENTS_DIR:-$$HOME/.cache/ahp-clients} $(GO) test -count=1 -v -timeout 40m -parallel 1 -run '^(TestWorkbench|TestFirstLinkToMergedChangeAtVSCode$$)' ./test/browser

