package agenthost_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/agenthost"
	"ahprelay/ahp"
	"ahprelay/test/refclient"
)

func TestRootIsNotLeft(t *testing.T) {
	root := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "a b.txt"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, url := serve(t, agenthost.Config{Root: root, Writable: true})
	c := join(t, url, "a", refclient.Options{})
	base := "file://" + root
	for _, tc := range []struct {
		method string
		params params
		want   string // text that the result must contain
		code   int    // code of the error
	}{
		{"resourceRead", params{"uri": base + "/a%20b.txt"}, `"data":"hello"`, 0},
		{"resourceRead", params{"uri": base + "/nope"}, "", ahp.CodeNotFound},
		{"resourceRead", params{"uri": base + "/link"}, "", ahp.CodeInternalError},
		{"resourceRead", params{"uri": base + "/../../etc/passwd"}, "", ahp.CodePermissionDenied},
		{"resourceRead", params{"uri": "file:///etc/passwd"}, "", ahp.CodePermissionDenied},
		{"resourceRead", params{"uri": base + "x/a"}, "", ahp.CodePermissionDenied},
		{"resourceWrite", params{"uri": base + "/new.txt", "data": "bmV3", "encoding": "base64"}, "{}", 0},
		{"resourceWrite", params{"uri": base + "/new.txt", "data": "x", "createOnly": true}, "", ahp.CodeAlreadyExists},
		{"resourceWrite", params{"uri": base + "/no/dir", "data": "x"}, "", ahp.CodeNotFound},
		{"resourceWrite", params{"uri": base + "/new.txt", "data": "x", "mode": "append"}, "", ahp.CodeInvalidParams},
		{"resourceWrite", params{"uri": base, "data": "x"}, "", ahp.CodePermissionDenied},
		{"resourceRead", params{"uri": base + "/new.txt"}, `"data":"new"`, 0},
		{"resourceMkdir", params{"uri": base + "/sub/deep"}, "{}", 0},
		{"resourceList", params{"uri": base}, `[{"name":"a b.txt","type":"file"},{"name":"link","type":"file"},` +
			`{"name":"new.txt","type":"file"},{"name":"sub","type":"directory"}]`, 0},
		{"resourceResolve", params{"uri": base + "/sub"}, `"type":"directory"`, 0},
		{"resourceDelete", params{"uri": base + "/nope", "recursive": true}, "", ahp.CodeNotFound},
		{"resourceDelete", params{"uri": base + "/sub", "recursive": true}, "{}", 0},
		{"resourceDelete", params{"uri": base + "/sub"}, "", ahp.CodeNotFound},
	} {
		result, err := c.Call(testContext(t), tc.method, tc.params)
		if rpc, ok := errors.AsType[*refclient.RPCError](err); tc.code != 0 && (!ok || rpc.Code != tc.code) {
			t.Errorf("%s(%v) = %s, %v; want error %d", tc.method, tc.params, result, err, tc.code)
		}
		if tc.code == 0 && (err != nil || !strings.Contains(string(result), tc.want)) {
			t.Errorf("%s(%v) = %s, %v; want %s", tc.method, tc.params, result, err, tc.want)
		}
	}
}

func TestWatchReportsClientChanges(t *testing.T) {
	root := t.TempDir()
	_, url := serve(t, agenthost.Config{Root: root, Writable: true})
	c := join(t, url, "a", refclient.Options{})
	base := "file://" + root
	var watched struct{ Channel string }
	decode(t, mustCall(t, c, "createResourceWatch", params{"uri": base}), &watched)
	subscribe(t, c, watched.Channel)
	mustCall(t, c, "resourceMkdir", params{"uri": base + "/sub"})
	mustCall(t, c, "resourceWrite", params{"uri": base + "/sub/deep.txt", "data": "x"}) // the watch does not include subfolders
	mustCall(t, c, "resourceWrite", params{"uri": base + "/a.txt", "data": "x"})
	mustCall(t, c, "resourceWrite", params{"uri": base + "/a.txt", "data": "y"})
	mustCall(t, c, "resourceDelete", params{"uri": base + "/a.txt"})
	want := []string{"sub added", "a.txt added", "a.txt updated", "a.txt deleted"}
	var got []string
	for _, frame := range c.Frames() {
		if a, ok := refclient.ReadAction(frame); ok {
			var action struct {
				Changes struct {
					Items []struct{ URI, Type string }
				}
			}
			decode(t, a.Action, &action)
			for _, item := range action.Changes.Items {
				got = append(got, strings.TrimPrefix(item.URI, base+"/")+" "+item.Type)
			}
		}
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("changes: %q; want %q", got, want)
	}
}
