package gate_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/auth/gate"
)

// shared returns a connection whose token permits these channels. The host's files are on this
// machine.
func shared(t *testing.T, channels ...string) *conn {
	policy := gate.NewPolicy(auth.AccessWrite, channels, nil, false)
	policy.SharedFiles = true
	return &conn{TB: t, gate: chainOf(policy, nil)}
}

// fileURI returns the file URI of a path.
func fileURI(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

// tree makes folders, files and links below a folder of the test's own:
//
//	allowed/file
//	allowed/out       -> secret
//	allowed/in        -> allowed/folder
//	allowed/folder/up -> ../.. (which is the folder itself)
//	allowed/nowhere   -> secret/new, which does not exist
//	allowed/loop      -> allowed/loop
//	alias             -> allowed
//	secret/file
func tree(t *testing.T) (folder string) {
	t.Helper()
	folder, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(folder, name) }
	must(os.MkdirAll(at("allowed/folder"), 0o700))
	must(os.Mkdir(at("secret"), 0o700))
	must(os.WriteFile(at("allowed/file"), nil, 0o600))
	must(os.WriteFile(at("secret/file"), nil, 0o600))
	must(os.Symlink(at("secret"), at("allowed/out")))
	must(os.Symlink("folder", at("allowed/in")))
	must(os.Symlink("../..", at("allowed/folder/up")))
	must(os.Symlink("../secret/new", at("allowed/nowhere")))
	must(os.Symlink("loop", at("allowed/loop")))
	must(os.Symlink("allowed", at("alias")))
	return folder
}

// TestLinksAreFollowed requests files through symbolic links below a permitted folder. The gate
// must refuse each link that leads outside.
func TestLinksAreFollowed(t *testing.T) {
	folder := tree(t)
	at := func(name string) string { return fileURI(filepath.Join(folder, name)) }
	for _, channels := range [][]string{{at("allowed")}, {at("allowed") + "/*"}, {at("alias"), at("allowed") + "/*"}} {
		c := shared(t, channels...)
		for name, want := range map[string]bool{
			"allowed/file":                true,
			"allowed/new":                 true,
			"allowed/new/folder/file":     true,
			"allowed/in/file":             true,
			"allowed/in/new/file":         true,
			"allowed/folder/up/allowed/x": true, // leads back inside
			"allowed/file/below":          true, // file is no folder on disk
			"allowed/out":                 false,
			"allowed/out/file":            false,
			"allowed/out/new":             false,
			"allowed/out/new/deep":        false,
			"allowed/folder/up":           false,
			"allowed/folder/up/secret/x":  false,
			"allowed/nowhere":             false,
			"allowed/nowhere/x":           false,
			"allowed/loop":                false,
			"allowed/loop/x":              false,
			"secret/file":                 false,
		} {
			for _, method := range []string{"resourceRead", "resourceList", "resourceResolve", "resourceWrite", "resourceDelete", "resourceMkdir", "resourceRequest", "createResourceWatch"} {
				c.want(fmt.Sprintf("%v: %s of %s", channels, method, name), c.passes(method, fmt.Sprintf(`{"uri":%q}`, at(name))), want)
			}
			for _, method := range []string{"resourceCopy", "resourceMove"} {
				c.want(method+" from "+name, c.passes(method, fmt.Sprintf(`{"source":%q,"destination":%q}`, at(name), at("allowed/to"))), want)
				c.want(method+" to "+name, c.passes(method, fmt.Sprintf(`{"source":%q,"destination":%q}`, at("allowed/file"), at(name))), want)
			}
		}
	}
}

// TestNamedFoldersAreFollowed has tokens that name the permitted folder through a symbolic link,
// also with a star. Files in the folder must be permitted, and links out must not.
func TestNamedFoldersAreFollowed(t *testing.T) {
	folder := tree(t)
	at := func(name string) string { return fileURI(filepath.Join(folder, name)) }
	for _, pattern := range []string{at("alias"), at("alias") + "/*", at("al") + "*", fileURI(folder) + "/al*"} {
		c := shared(t, pattern)
		c.want(pattern+": a file", c.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, at("alias/file"))), true)
		c.want(pattern+": a link out", c.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, at("alias/out/file"))), false)
	}
	// The token permits all files on this machine, and none on another.
	c := shared(t, "file:///*")
	c.want("any file", c.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, at("allowed/out/file"))), true)
	c.want("a folder", c.passes("resourceRead", `{"uri":"file:///"}`), true)
	c.want("a server that is none here", c.passes("resourceRead", `{"uri":"file://etc/passwd"}`), false)
	c = shared(t, "file:*")
	c.want("a server that is none here", c.passes("resourceRead", `{"uri":"file://etc/passwd"}`), false)
	c.want("a drive that is none here", c.passes("resourceRead", `{"uri":"file:///c:/x"}`), false)
	// VS Code's name for files on the host's machine is vscode-remote.
	remote := func(name string) string { return "vscode-remote://box" + filepath.Join(folder, name) }
	c = shared(t, remote("allowed"))
	c.want("a remote file", c.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, remote("allowed/file"))), true)
	c.want("a remote link out", c.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, remote("allowed/out/file"))), false)
	// The second list does not permit the link's target.
	policy := gate.NewPolicy(auth.AccessWrite, []string{at("allowed"), at("secret")}, nil, false).Narrow(gate.NewPolicy(auth.AccessWrite, []string{at("allowed")}, nil, false))
	policy.SharedFiles = true
	c = &conn{TB: t, gate: chainOf(policy, nil)}
	c.want("a link into what one list names", c.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, at("allowed/out/file"))), false)
}

// TestRemoteLinksAreNotFollowed has a host on another machine, whose links the gate cannot see. The
// gate must permit the request by the file's name alone.
func TestRemoteLinksAreNotFollowed(t *testing.T) {
	folder := tree(t)
	c := limited(t, nil, fileURI(filepath.Join(folder, "allowed")))
	c.want("a link", c.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, fileURI(filepath.Join(folder, "allowed/out/file")))), true)
}

// TestErrorsHideLinkTargets requests files through links that lead outside. The error must name the
// requested path, and not the link's target.
func TestErrorsHideLinkTargets(t *testing.T) {
	folder := tree(t)
	c := shared(t, fileURI(filepath.Join(folder, "allowed")))
	for _, name := range []string{"out/file", "nowhere", "loop"} {
		got := c.ask("resourceRead", fmt.Sprintf(`{"uri":%q}`, fileURI(filepath.Join(folder, "allowed", name))), "null")
		if !strings.Contains(got, "-32009") || !strings.Contains(got, "allowed/"+name) || strings.Contains(got, "secret") {
			t.Errorf("a read of the link %s is answered %s; want an error that names only the link's own path", name, got)
		}
	}
}
