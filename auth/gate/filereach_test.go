package gate_test

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/auth/gate"
)

// wants fails unless the client may read exactly the files that map to true, by every request that
// can read a file.
func (c *conn) wants(files map[string]bool) {
	c.Helper()
	for uri, want := range files {
		for _, method := range []string{"resourceRead", "resourceList", "resourceResolve"} {
			c.want(method+" of "+uri, c.passes(method, fmt.Sprintf(`{"channel":"ahp-root://","uri":%q}`, uri)), want)
		}
		watch := "ahp-resource-watch://r/" + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"root":%q,"recursive":true}`, uri))
		c.want("a watch of "+uri, c.subscribes(watch), want)
		c.want("one to begin with", c.passes("initialize", fmt.Sprintf(`{"clientId":"c","initialSubscriptions":[%q]}`, watch)), want)
		c.want("one to go on with, in windows", c.passes("reconnect", fmt.Sprintf(`{"clientId":"c","subscriptions":[],"windows":{"items":[{"channel":%q}]}}`, watch)), want)
		c.want("the file as a channel", c.subscribes(uri), want)
		c.want("it as a canvas's", c.passes("canvasReadResource", fmt.Sprintf(`{"channel":"ahp-canvas:/1","uri":%q}`, uri)), want)
		c.want("it as a server's", c.passes("resources/read", fmt.Sprintf(`{"channel":"mcp://x","uri":%q}`, uri)), want)
	}
}

// TestWatchesHaveOneReading subscribes to watches whose channels name a permitted folder to one
// parser, and another folder to VS Code's host, which decodes the path alone. The gate must refuse
// them.
func TestWatchesHaveOneReading(t *testing.T) {
	name := func(folder string) string {
		return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"root":%q}`, folder))
	}
	in, out := name("file:///w"), name("file:///etc")
	for _, policy := range []gate.Policy{gate.NewPolicy(auth.AccessRead, nil, nil, false), gate.NewPolicy(auth.AccessApprove, nil, nil, false)} {
		c := of(t, policy.WithFolders())
		c.ask("subscribe", `{"channel":"mock:/s"}`, folderOfS)
		for channel, want := range map[string]bool{
			"ahp-resource-watch://r/" + in: true, "ahp-resource-watch:/" + in: true, "ahp-resource-watch://r/" + out: false,
			"ahp-resource-watch://r/" + out + "?/" + in: false, "ahp-resource-watch://r/" + out + "#/" + in: false, "ahp-resource-watch://r/" + out + "?x=/" + in: false,
			"ahp-resource-watch:/" + out + "/" + in: false, "ahp-resource-watch://" + out + "/" + in + "?": false, "ahp-resource-watch://" + out + "?/" + in: false,
			"\tahp-resource-watch://r/" + out: false, "AHP-resource-watch://r/" + out: false,
		} {
			c.want("a watch by "+channel, c.subscribes(channel), want)
			c.want("one to begin with, by "+channel, c.passes("initialize", fmt.Sprintf(`{"clientId":"c","initialSubscriptions":[%q]}`, channel)), want)
		}
	}
}

func of(t testing.TB, policy gate.Policy) *conn { return &conn{TB: t, gate: chainOf(policy, nil)} }

// TestReadersReachNamedFilesOnly fails unless a token at the level look, and an owner's limit to
// look, permit only the files that they name.
func TestReadersReachNamedFilesOnly(t *testing.T) {
	writer := gate.NewPolicy(auth.AccessWrite, nil, nil, false)
	named := []string{"*", "file:///home/ada/*"}
	for name, policy := range map[string]gate.Policy{
		"a reader":                          gate.NewPolicy(auth.AccessRead, nil, nil, true),
		"a reader of all":                   gate.NewPolicy(auth.AccessRead, []string{"*"}, nil, true),
		"a reader of what begins so":        gate.NewPolicy(auth.AccessRead, []string{"*", "f*"}, nil, true),
		"an owner's":                        writer.Narrow(gate.NewPolicy(auth.AccessRead, nil, nil, true)),
		"a reader beside a private session": withPrivate(gate.NewPolicy(auth.AccessRead, nil, nil, true)),
		"a named one that the owner is not": gate.NewPolicy(auth.AccessRead, named, nil, true).Narrow(gate.NewPolicy(auth.AccessRead, nil, nil, true)),
	} {
		t.Run(name, func(t *testing.T) {
			of(t, policy).wants(map[string]bool{"file:///home/ada/x": false, "file:///etc/passwd": false, "vscode-remote://box/etc": false})
		})
	}
	for name, policy := range map[string]gate.Policy{
		"a reader":     gate.NewPolicy(auth.AccessRead, named, nil, true),
		"an owner's":   writer.Narrow(gate.NewPolicy(auth.AccessRead, named, nil, true)),
		"with private": withPrivate(gate.NewPolicy(auth.AccessRead, named, nil, true)),
		"both":         gate.NewPolicy(auth.AccessRead, []string{"*", "file:///home/*"}, nil, true).Narrow(gate.NewPolicy(auth.AccessRead, named, nil, true)),
		"all by owner": gate.NewPolicy(auth.AccessRead, named, nil, true).Narrow(gate.NewPolicy(auth.AccessAdmin, nil, nil, true)),
	} {
		t.Run(name+", named", func(t *testing.T) {
			of(t, policy).wants(map[string]bool{"file:///home/ada/x": true, "file:///etc/passwd": false, "file:///home/ada/%2e%2e/x": false})
		})
	}
}

// withPrivate returns the policy of a client that may not see the session mock:/private.
func withPrivate(policy gate.Policy) gate.Policy {
	policy.Hidden = []string{"mock:/private"}
	return policy
}

// TestReadersReadWhatBelongsToSessions fails unless a client at the level look may read content
// that belongs to sessions, such as canvases and changesets, and no other.
func TestReadersReadWhatBelongsToSessions(t *testing.T) {
	c := of(t, gate.NewPolicy(auth.AccessRead, nil, nil, true))
	read := func(uri string) bool { return c.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, uri)) }
	const blob = "git-blob:/home/ada/x?%7B%22sessionUri%22%3A%22mock%3A%2F1%22%2C%22sha%22%3A%22abc%22%2C%22repoRelativePath%22%3A%22x%22%7D"
	c.want("a canvas's content", read("ahp-canvas-content:/1/index.html?x=1"), true)
	c.want("a file of a changeset that the host has not named", read(blob), false)
	c.names("mock:/1/changeset/session", blob)
	c.want("a file of a changeset, without files", read(blob), false)
	c.want("it with another session, in another case", read(blob[:len(blob)-3]+"%2C%22SessionUri%22%3A%22mock%3A%2F2%22%7D"), false)
	c.want("one that acts", read("agent-edit-attribution:/commit?payload=x"), false)
	c.want("below a channel before", read("mock:/1/notes.txt"), false)
	c.ask("subscribe", `{"channel":"mock:/1"}`, `{}`)
	c.want("below a channel", read("mock:/1/notes.txt"), true)
	c.want("beside it", read("mock:/1/../2"), false)
	c.want("below another", read("mock:/2/notes.txt"), false)
	c.want("turns", c.passes("fetchTurns", `{"channel":"ahp-chat:/1"}`), true)

	// A subscription to a channel that contains the URI must not change the result.
	const option = "git-blob:/home/ada/x?%7B%22sessionUri%22%3A%22mock%3A%2F1%22%2C%22sha%22%3A%22--output%3D%2Fx%22%7D"
	for _, begin := range []func(channel string) string{
		func(ch string) string {
			return c.ask("initialize", `{"clientId":"c","subscriptions":["`+ch+`"]}`, `{"snapshots":[]}`)
		},
		func(ch string) string {
			return c.ask("reconnect", `{"clientId":"c","subscriptions":["`+ch+`"]}`, `{"type":"snapshot","snapshots":[]}`)
		},
		func(ch string) string { return c.ask("subscribe", `{"channel":"`+ch+`"}`, `{}`) },
	} {
		c.want("an option for git", read(option), false)
		begin("git-blob:/home")
		begin("GIT-blob:/home")
		c.want("an option for git below a channel", read(option), false)
		c.want("it in capitals", read(strings.Replace(option, "git", "GIT", 1)), false)
		c.want("what was never granted", read("unheard-of:/etc/passwd"), false)
		c.ask("initialize", `{"clientId":"c","subscriptions":["unheard-of:/etc"]}`, `{"snapshots":[]}`)
	}

	// A token for one session permits only this session's content.
	c = of(t, gate.NewPolicy(auth.AccessRead, []string{"mock:/1"}, nil, true))
	const edit = "session-db:/home/ada/x?%7B%22sessionUri%22%3A%22mock%3A%2F1%22%2C%22toolCallId%22%3A%221%22%7D"
	c.want("an edit that the host has not named", read(edit), false)
	c.names("mock:/1/changeset/session", edit)
	c.want("an edit of the session", read(edit), true)
	c.want("an edit of another's", read("session-db:/home/ada/x?%7B%22sessionUri%22%3A%22mock%3A%2F2%22%7D"), false)
}

// TestWorkingDirectoriesAreInReach has the host name working directories in different messages. A
// policy with folders must permit files in those of visible sessions, and no others.
func TestWorkingDirectoriesAreInReach(t *testing.T) {
	const list = `{"items":[{"resource":"mock:/1","workingDirectories":["file:///home/ada/one"]},{"resource":"mock:/2","workingDirectories":["file:///home/ada/two/"]}]}`
	one, two := "file:///home/ada/one/x", "file:///home/ada/two/x"
	all := gate.NewPolicy(auth.AccessRead, nil, nil, false)
	session := gate.NewPolicy(auth.AccessRead, []string{"mock:/1"}, nil, false)
	for _, c := range []struct {
		name   string
		policy gate.Policy
		want   map[string]bool
	}{
		{"all sessions", all.WithFolders(), map[string]bool{one: true, two: true, "file:///home/ada/x": false, "file:///home/ada/one/../x": false}},
		{"one session", session.WithFolders(), map[string]bool{one: true, two: false}},
		{"without", session, map[string]bool{one: false, two: false}},
		{"an owner who allows none", all.WithFolders().Narrow(all), map[string]bool{one: false}},
		{"an owner who does", all.WithFolders().Narrow(all.WithFolders()), map[string]bool{one: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for how, learn := range map[string]func(*conn){
				"a list":       func(c *conn) { c.ask("listSessions", `{}`, list) },
				"its snapshot": func(c *conn) { c.ask("subscribe", `{"channel":"mock:/1"}`, snapshotOf("mock:/1", "one")) },
				"snapshots": func(c *conn) {
					c.ask("initialize", `{"clientId":"x","initialSubscriptions":["mock:/1"]}`, `{"snapshots":[{"resource":"mock:/1","state":{"workingDirectories":["file:///home/ada/one"]}}]}`)
				},
				"news": func(c *conn) {
					c.host(`{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/1","workingDirectory":"file:///home/ada/one"}}}`)
				},
			} {
				at := of(t, c.policy)
				read := func(uri string) bool { return at.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, uri)) }
				at.want("a file before the session is known", read(one), false)
				learn(at)
				for uri, want := range c.want {
					at.want(fmt.Sprintf("after %s: %s", how, uri), read(uri), want && (how == "a list" || uri == one))
				}
			}
		})
	}
}

func snapshotOf(session, folder string) string {
	return fmt.Sprintf(`{"snapshot":{"resource":%q,"state":{"summary":{"workingDirectories":["file:///home/ada/%s"]}}}}`, session, folder)
}

// TestLinksInWorkingDirectoriesAreFollowed has working directories with symbolic links. A link may
// lead to a permitted file, and not outside the directory.
func TestLinksInWorkingDirectoriesAreFollowed(t *testing.T) {
	folder := tree(t)
	policy := gate.NewPolicy(auth.AccessRead, nil, nil, false).WithFolders()
	policy.SharedFiles = true
	c := of(t, policy)
	c.ask("listSessions", `{}`, fmt.Sprintf(`{"items":[{"resource":"mock:/1","workingDirectories":[%q]}]}`, fileURI(filepath.Join(folder, "alias"))))
	for name, want := range map[string]bool{"alias/file": true, "alias/out/file": false, "secret/file": false} {
		c.want(name, c.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, fileURI(filepath.Join(folder, name)))), want)
	}
}
