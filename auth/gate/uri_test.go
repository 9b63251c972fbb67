package gate_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"

	"ahprelay/auth"
	"ahprelay/auth/gate"

	"pgregory.net/rapid"
)

// A seen is a path that a parser reads from a URI.
type seen struct{ by, path string }

// vscodeURI is the regular expression with which VS Code parses a URI (src/vs/base/common/uri.ts).
var vscodeURI = regexp.MustCompile(`^(([^:/?#]+?):)?(//([^/?#]*))?([^?#]*)(\?([^#]*))?(#(.*))?`)

var vscodeScheme = regexp.MustCompile(`^\w[\w\d+.-]*$`)

// byVSCode returns the path that VS Code reads from a URI, and the path that it would open on disk.
// It returns no path if VS Code refuses the URI.
func byVSCode(uri string) []seen {
	m := vscodeURI.FindStringSubmatch(uri)
	scheme, authority, p := m[2], vscodeDecode(m[4]), vscodeDecode(m[5])
	if scheme == "" {
		scheme = "file"
	}
	if (scheme == "file" || scheme == "http" || scheme == "https") && !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	if !vscodeScheme.MatchString(scheme) || authority != "" && p != "" && p[0] != '/' || authority == "" && strings.HasPrefix(p, "//") {
		return nil
	}
	fs := p
	if authority != "" && len(p) > 1 && scheme == "file" {
		fs = "//" + authority + p
	} else if drive.MatchString(p) {
		fs = strings.ToLower(p[1:2]) + p[2:]
	}
	return []seen{{"VS Code", p}, {"VS Code's fsPath", fs}}
}

var (
	drive   = regexp.MustCompile(`^/[A-Za-z]:`)
	escapes = regexp.MustCompile(`(%[0-9A-Za-z][0-9A-Za-z])+`)
)

// vscodeDecode decodes escapes as VS Code does: all that are valid.
func vscodeDecode(text string) string {
	var graceful func(string) string
	graceful = func(s string) string {
		if plain, err := url.PathUnescape(s); err == nil && strings.ToValidUTF8(plain, "") == plain {
			return plain
		}
		if len(s) <= 3 {
			return s
		}
		return s[:3] + graceful(s[3:])
	}
	return escapes.ReplaceAllStringFunc(text, graceful)
}

// byGo returns the paths that Go's net/url reads from a URI.
func byGo(uri string) []seen {
	u, err := url.Parse(uri)
	if err != nil {
		return nil
	}
	return []seen{{"net/url", u.Host + u.Path}, {"net/url's clean", u.JoinPath().Path}}
}

// byHand returns paths that careless programs read from a URI: they remove the scheme, decode
// escapes up to three times, and may not separate the query.
func byHand(uri string) (list []seen) {
	text := strings.TrimPrefix(uri, "file://")
	for i := range 4 {
		whole := strings.NewReplacer("\t", "", "\n", "", "\r", "", "\x00", "").Replace(text)
		short, _, _ := strings.Cut(whole, "\x00")
		noQuery := whole
		if at := strings.IndexAny(whole, "?#"); at >= 0 {
			noQuery = whole[:at]
		}
		for _, p := range []string{text, whole, short, noQuery, strings.TrimSpace(noQuery)} {
			list = append(list, seen{fmt.Sprintf("a program that decodes %d times", i), p})
		}
		text = lenient(text)
	}
	return list
}

// lenient decodes each valid escape in a text, once.
func lenient(text string) string {
	return regexp.MustCompile(`%[0-9A-Fa-f]{2}`).ReplaceAllStringFunc(text, func(e string) string {
		plain, _ := url.PathUnescape(e)
		return plain
	})
}

// A nodeReader is a Node process that parses URIs. It answers each line with a line.
type nodeReader struct {
	ask    func(string)
	answer *bufio.Reader
}

func startNode(t testing.TB) *nodeReader {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not in PATH: nothing to compare with")
	}
	cmd := exec.Command(node, "testdata/url.js")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	return &nodeReader{func(line string) { fmt.Fprintln(in, line) }, bufio.NewReader(out)}
}

// see returns the paths that Node's URL and fileURLToPath read from a URI.
func (n *nodeReader) see(t testing.TB, uri string) (list []seen) {
	t.Helper()
	n.ask(base64.StdEncoding.EncodeToString([]byte(uri)))
	line, err := n.answer.ReadBytes('\n')
	if err != nil {
		t.Fatalf("reading node's answer: %v; want no error", err)
	}
	var got struct{ Host, Path, Raw, File, Windows *string }
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatalf("node's answer %s cannot be read: %v", line, err)
	}
	for by, p := range map[string]*string{"Node's URL": got.Path, "Node's URL, as it stands": got.Raw, "Node's fileURLToPath": got.File} {
		if p != nil {
			list = append(list, seen{by, *p})
		}
	}
	if got.Host != nil && *got.Host != "" {
		list = append(list, seen{"Node's URL", "//" + *got.Host})
	}
	return list
}

// inside reports whether a pattern matches a path, and still does if "\" in the path is
// read as "/", as some parsers do.
func inside(p, pattern string) bool {
	for _, one := range []string{p, strings.ReplaceAll(p, `\`, "/")} {
		if !auth.Matches(pattern, path.Clean(one)+"/") {
			return false
		}
	}
	return true
}

// pieces are parts for random URIs, which parsers could misread.
var pieces = []string{
	"..", ".", "%2e", "%2E", "%252e", "%25252e", "/", "/", "/", "//", `\`, "%2f", "%5c", "%255c", "?", "#", "%3f", "%23", "%", "%zz", "%2", "%u002e",
	"\t", "\n", "\r", " ", "%09", "%0a", "%20", "%00", "\x00", "\x01", "\x7f", "%c0%ae", "%ff", "%e2%80%ae", "\u202e", "\u2028", "．", "é", "e\u0301",
	"a", "secret", "allowed", "c:", "C|", "%3a", ":", "@", ";", "&", "*", "%2a", "|", "^", "{", "~", "+", "x.txt", "...",
}

// prefixes are beginnings for random URIs.
var prefixes = []string{
	"file:///allowed/", "file:///allowed/", "file:///allowed/", "file:///allowed/", "file:///allowed", "file:/allowed/", "FILE:///allowed/", " file:///allowed/", "file:\t///allowed/",
	"file://localhost/allowed/", "file://allowed/", "file:allowed/", `file:\\\allowed/`, "file:////allowed/", "file:///./allowed/", "file:///x/../allowed/", "file:///%61llowed/",
	"file:///ALLOWED/", "file://a@/allowed/", "file:///allowed%2f", "file:///c:/allowed/", "/allowed/", "",
}

// reads reports whether a token with these channel patterns may read a URI.
func reads(t testing.TB, uri string, patterns ...string) bool {
	params, err := json.Marshal(map[string]string{"uri": uri})
	if err != nil {
		t.Fatal(err)
	}
	return limited(t, nil, patterns...).passes("resourceRead", string(params))
}

// wantInside fails if a parser reads a path outside the pattern from a URI that the gate has
// passed.
func wantInside(t testing.TB, node *nodeReader, uri, pattern string) {
	t.Helper()
	list := append(append(byVSCode(uri), byGo(uri)...), byHand(uri)...)
	if node != nil {
		list = append(list, node.see(t, uri)...)
	}
	for _, s := range list {
		if !inside(s.path, pattern) {
			t.Errorf("%q passes, but the reader %s opens %q; want a path inside the pattern", uri, s.by, s.path)
		}
	}
}

// drawURI draws a random URI that parsers could misread.
func drawURI(t *rapid.T) string {
	var b strings.Builder
	b.WriteString(rapid.SampledFrom(prefixes).Draw(t, "prefix"))
	for _, piece := range rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 9).Draw(t, "pieces") {
		b.WriteString(piece)
	}
	return b.String()
}

// TestNoParserSeesOutside requests random URIs. If the gate passes a URI, then Node, VS Code, Go
// and careless programs must read no path outside the permitted folder.
func TestNoParserSeesOutside(t *testing.T) {
	node := startNode(t)
	passed := 0
	for pattern, paths := range map[string]string{
		"file:///allowed": "/allowed/*", "file:///allowed/*": "/allowed/*", "file:///all*d/*": "/all*d/*",
	} {
		rapid.Check(t, func(rt *rapid.T) {
			for range 40 { // drawing is fast, so each Check draws many URIs
				uri := drawURI(rt)
				if !reads(t, uri, pattern) {
					continue
				}
				passed++
				wantInside(t, node, uri, paths)
			}
		})
	}
	if passed < 500 {
		t.Errorf("%d URIs passed; want at least 500", passed)
	}
}

// FuzzURIs requests any URI. If the gate passes it, then VS Code, Go and careless programs must
// read no path outside the permitted folder.
func FuzzURIs(f *testing.F) {
	for _, tail := range []string{"%2e%2e/secret?%zz", "..#%", ".\t./x", "a/b%20c/100%25", "?/../../x", "%2e%2e%2fx", "x:../..", "é"} {
		f.Add("file:///allowed/" + tail)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		if strings.ToValidUTF8(uri, "") == uri && reads(t, uri, "file:///allowed/*") {
			wantInside(t, nil, uri, "/allowed/*")
		}
	})
}

// TestFilesThatPass lists patterns and URIs. The usual forms of a file's URI must pass, and unusual
// forms must not.
func TestFilesThatPass(t *testing.T) {
	const windows = "file:///c%3A/Users/Ada/*"
	for _, test := range []struct {
		pattern, uri string
		want         bool
	}{
		{"file:///home/ada/*", "file:///home/ada/x", true},
		{"file:///home/ada/*", "file:///home/ada/a%20b/100%25/caf%C3%A9", true},
		{"file:///home/ada/*", "file:///home/ada/café+@(1)", true},
		{"file:///home/ada/*", "file:///home/%61da/x", false}, // this escape is unnecessary
		{"file:///home/ada/*", "file:///home/ada/dir/", true},
		{"file:///home/ada/a b/*", "file:///home/ada/a%20b/x", true}, // as people write a pattern
		{"file:/home/ada/*", "file:///home/ada/x", true},
		{"file:///home/ada", "file:///home/ada/x", true},
		{"file:///home/ada/what%3F", "file:///home/ada/what%3F", true},
		{"file:///home/ada/what%3F", "file:///home/ada/what%3f", true},
		{"file:///home/ada/*", "file:///home/ada/what%3F", true},
		{"file:///home/a*a/*", "file:///home/ada%20.%23a/x", false}, // a parser that decodes first reads /home/ada .
		{"file:///home/a*a/*", "file:///home/ada/x%23y", true},
		{"file:///home/ada/%2A/x", "file:///home/ada/*/x", true},
		{"file:///home/ada/%2A/x", "file:///home/ada/y/x", false},
		{"file:///home/ada/*", "file:///home/ada/%2Fx", false},
		{"file:///home/ada%2Fx/*", "file:///home/ada/x/y", false},
		{"file:///home/ada/x?y", "file:///home/ada/x?y", false},
		{"file:///home/ada/../bob", "file:///home/ada/../bob", false}, // refused although the token names it
		{"file:///home/ada/*", "file:///home/ada/a b", false},
		{"file:///home/ada/*", "file:///home/ada/x#L1", false},
		{"file:///home/ada/*", "file:///home/ada//x", false},
		{"file:///home/ada/*", "file:/home/ada/x", false},
		{"file:///home/ada/*", "file:home/ada/x", false},
		{"file:///home/ada/*", "FILE:///home/ada/x", false},
		{"file:///home/ada/*", "file://localhost/home/ada/x", false},
		{"file:///home/ada/*", "file://home/ada/x", false},
		{"file:///home/ada/*", "vscode-remote://box/home/ada/x", false},
		{"vscode-remote://ssh-remote%2Bbox/home/ada/*", "vscode-remote://ssh-remote+box/home/ada/x", true},
		{"vscode-remote://box/home/ada/*", "vscode-remote://box/home/ada/../x", false},
		{"vscode-remote://box/home/ada/*", "vscode-remote://box/home/ada/%2e%2e/x?%zz", false},
		{"vscode-remote://box/home/ada/*", "vscode-remote://other/home/ada/x", false},
		{windows, "file:///c%3A/Users/Ada/x", true},
		{windows, "file:///c:/Users/Ada/x", true},
		{windows, "file:///C:/Users/Ada/x", true},
		{windows, "file:///c%3A/Users/ada/x", false}, // Windows ignores the case; the gate does not
		{windows, "file:///c%7C/Users/Ada/x", false},
		{windows, "file:///c|/Users/Ada/x", false},
		{windows, `file:///c:/Users/Ada/..\x`, false},
		{windows, "file:///c:/Users/Ada/.. /x", false},
		{windows, "file:///c:/Users/Ada/..%20/x", false},
		{windows, "file:///c:/Users/Ada/.../x", false},
		{windows, "file:///c:/Users/Ada/x:..", false},
		{"file://server/share/*", "file://server/share/x", true},
		{"file://server/share/*", "file://server/share/../x", false},
		{"file://server/share/*", "file://server@evil/share/x", false},
		{"file://server*", "file://server:80@evil/x", false},
		{"file:*", "file:///etc/passwd", true},
		{"file:*", "file:/etc/passwd", false},
	} {
		if got := reads(t, test.uri, test.pattern); got != test.want {
			t.Errorf("a token for %s reads %s: %v; want %v", test.pattern, test.uri, got, test.want)
		}
	}
}

// TestRefusedURIsHaveReasons fails unless the error for a refused URI has the reason.
func TestRefusedURIsHaveReasons(t *testing.T) {
	for uri, why := range map[string]string{
		"file:///home/ada/%zz":   "escape",
		"file:///home/ada/../x":  "dots",
		"file:///home/ada/a b":   "percent-encoded",
		"file:///home/ada/x?y":   "query",
		"file:///home/ada/%2F/x": "encoded slash",
		"file:///home/ada//x":    "empty part",
	} {
		got := limited(t, nil, "file:///home/ada/*").ask("resourceRead", fmt.Sprintf(`{"uri":%q}`, uri), "null")
		if !strings.Contains(got, `"code":-32009`) || !strings.Contains(got, why) {
			t.Errorf("%s: %s; want -32009 with %q", uri, got, why)
		}
	}
}

// TestFileURIsMustBeStrings sends a URI as an object, which VS Code would accept. The gate must
// refuse it.
func TestFileURIsMustBeStrings(t *testing.T) {
	c := limited(t, nil, "file:///home/ada/*")
	const object = `{"$mid":1,"scheme":"file","path":"/etc/passwd","uri":"file:///home/ada/x"}`
	c.want("an object with a URI that is in reach", c.passes("resourceResolve", `{"uri":`+object+`}`), false)
	c.want("it in a list", c.passes("resourceResolve", `{"uri":["file:///home/ada/x"]}`), false)
}

// TestHostCannotAddFiles has the host name file URIs as chats. The client must not get access to
// these files.
func TestHostCannotAddFiles(t *testing.T) {
	c := limited(t, nil, "mock:/1")
	for i, uri := range []string{"file:///etc", "FILE:/etc", "vscode-remote://box/etc", "vscode-agent-client://me/file/-/etc"} {
		c.host(fmt.Sprintf(`{"method":"action","params":{"channel":"mock:/1","action":{"type":"session/chatAdded","chat":{"resource":%q}},"serverSeq":%d}}`, uri, i))
		c.want(uri, c.passes("resourceRead", fmt.Sprintf(`{"uri":%q}`, uri)), false)
		c.want(uri+"/x", c.passes("resourceRead", fmt.Sprintf(`{"uri":"%s/x"}`, uri)), false)
	}
}

// TestOwnersFileLimitsHold fails unless a file request must be permitted by the owner's limits, in
// addition to the token's.
func TestOwnersFileLimitsHold(t *testing.T) {
	token := gate.NewPolicy(auth.AccessWrite, []string{"file:///home/*"}, nil, false)
	owner := gate.NewPolicy(auth.AccessAdmin, []string{"file:///home/ada/*"}, nil, true)
	c := &conn{TB: t, gate: chainOf(token.Narrow(owner), nil)}
	c.want("a file", c.passes("resourceWrite", `{"uri":"file:///home/ada/x"}`), true)
	for _, uri := range []string{"file:///home/bob/x", "file:///home/ada/%2e%2e/bob/x?%zz", "file:///home/ada/../bob#%", "file:///home/ada/.\t./bob"} {
		params, _ := json.Marshal(map[string]string{"uri": uri})
		c.want(uri, c.passes("resourceWrite", string(params)), false)
	}
}
