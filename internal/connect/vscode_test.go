package connect_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/internal/connect"
)

// TestVSCodeSettingsKeepTheRest adds hosts to VS Code's settings and removes them. The settings are
// a symbolic link to a file with comments and an entry that is not ours; all of these must stay.
// Damaged settings must stay unchanged.
func TestVSCodeSettingsKeepTheRest(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "real.json"), filepath.Join(dir, "settings.json")
	const before = `{
	// my editor
	"editor.fontSize": 13, // small
	"chat.remoteAgentHosts": [
		{"name": "laptop", "address": "wss://elsewhere.example", "connectionToken": "theirs"}, // not ours
	],
	"settingsSync.ignoredSettings": ["editor.fontSize"],
}
`
	if err := os.WriteFile(file, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	tokens := connect.NewTokens(filepath.Join(dir, "tokens.json"))
	v := &connect.VSCode{File: link, Listen: "127.0.0.1:8486", Tokens: tokens}
	for range 2 { // the second call only replaces the tokens
		if err := v.Add([]string{"laptop", "build"}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := tokens.List()
	if err != nil || len(list) != 2 || list[0].Hosts[0] != "build" || list[1].Name != "vscode laptop" {
		t.Fatalf("the local tokens are %v, %v; want two, for build and laptop", list, err)
	}
	text := read(t, file)
	for _, want := range []string{"// my editor", "13, // small", `"theirs"`, list[0].Token, list[1].Token, `"ws://127.0.0.1:8486"`, `"chat.remoteAgentHostsEnabled":true`, `["editor.fontSize","chat.remoteAgentHosts"]`} {
		if !strings.Contains(strings.ReplaceAll(text, ": ", ":"), strings.ReplaceAll(want, ": ", ":")) {
			t.Errorf("the settings lack %s:\n%s", want, text)
		}
	}
	if strings.Count(text, "local_") != 2 {
		t.Errorf("the settings have a different number of local tokens; want 2:\n%s", text)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with tokens has mode %v, %v; want 0600", info.Mode(), err)
	}
	if err := v.Remove([]string{"laptop"}); err != nil {
		t.Fatal(err)
	}
	if err := v.Remove([]string{"laptop"}); err == nil || !strings.Contains(err.Error(), "no entry") {
		t.Errorf("a second Remove: %v; want no entry", err)
	}
	if err := v.Remove(nil); err != nil {
		t.Fatal(err)
	}
	if list, err := tokens.List(); err != nil || len(list) > 0 {
		t.Errorf("after Remove, the local tokens are %v, %v; want none", list, err)
	}
	text = read(t, file)
	if strings.Contains(text, "local_") || !strings.Contains(text, `"theirs"`) || !strings.Contains(text, "// my editor") {
		t.Errorf("after Remove, the settings are\n%s\nwant only the user's own lines", text)
	}

	none := &connect.VSCode{File: filepath.Join(dir, "none.json"), Tokens: tokens}
	if err := none.Remove(nil); err != nil {
		t.Errorf("Remove of all entries without settings: %v; want no error", err)
	}
	if _, err := os.Stat(none.File); err == nil {
		t.Error("Remove makes settings; want none")
	}
	fresh := &connect.VSCode{File: filepath.Join(dir, "new.json"), Listen: "127.0.0.1:8486", Tokens: tokens}
	if err := fresh.Add([]string{"laptop"}); err != nil {
		t.Fatal(err)
	}
	if err := fresh.Remove(nil); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(strings.Fields(read(t, fresh.File)), ""); text != "{}" {
		t.Errorf("after Remove, new settings are %s; want {}", text)
	}
	if err := os.WriteFile(file, []byte(`{"chat.remoteAgentHosts": 7`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := v.Add([]string{"laptop"}); err == nil || !strings.Contains(err.Error(), "not readable") || read(t, file) != `{"chat.remoteAgentHosts": 7` {
		t.Errorf("Add to damaged settings: %v; want not readable, and the file unchanged", err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
