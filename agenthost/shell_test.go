package agenthost_test

import (
	"encoding/json"
	"strings"
	"testing"

	"ahprelay/agenthost"
	"ahprelay/test/refclient"
)

func decode(t *testing.T, raw json.RawMessage, v any) {
	t.Helper()
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatalf("decode %s: %v", raw, err)
	}
}

func TestTerminalRunsAShell(t *testing.T) {
	host, url := serve(t, agenthost.Config{Terminals: agenthost.ShellTerminals, Root: t.TempDir()})
	c := join(t, url, "a", refclient.Options{})
	const uri = "agenthost-terminal:/sh"
	mustCall(t, c, "createTerminal", params{"channel": uri, "cols": 100, "rows": 30})
	subscribe(t, c, uri)
	type_ := func(line string) {
		if _, err := c.Dispatch(uri, params{"type": "terminal/input", "data": line + "\r"}); err != nil {
			t.Fatal(err)
		}
	}
	type_("stty size; echo sum-$((40+2))-ä; exit 3")
	if _, err := c.WaitFor(testContext(t), refclient.IsAction(uri, "terminal/exited")); err != nil {
		t.Fatal(err)
	}
	output := ""
	for _, frame := range c.Frames() {
		if a, ok := refclient.ReadAction(frame); ok && a.Type() == "terminal/data" {
			var data struct{ Data string }
			decode(t, a.Action, &data)
			output += data.Data
		}
	}
	for _, want := range []string{"30 100", "sum-42-ä"} {
		if !strings.Contains(output, want) {
			t.Errorf("output %q; want %q in it", output, want)
		}
	}

	// A shell that runs ends when its terminal is disposed, and when the host closes.
	mustCall(t, c, "createTerminal", params{"channel": uri + "2"})
	mustCall(t, c, "createTerminal", params{"channel": uri + "3"})
	mustCall(t, c, "disposeTerminal", params{"channel": uri + "2"})
	if err := host.Close(); err != nil {
		t.Error(err)
	}
}
