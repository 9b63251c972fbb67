package gate

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
)

// ask sends a client's request through the gate. It returns the error's code, or "" if the request
// passes, and the decision.
func ask(t *testing.T, g Gate, method, params string) (code string, d Decision) {
	t.Helper()
	message := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)
	return judge(t, g.FromClient, message)
}

// hostSide returns g's FromHost without a reading, for judge.
func hostSide(g Gate) func([]byte, *ahp.Envelope) Decision {
	return func(message []byte, env *ahp.Envelope) Decision { return g.FromHost(message, env, nil) }
}

func judge(t *testing.T, side func([]byte, *ahp.Envelope) Decision, message string) (code string, d Decision) {
	t.Helper()
	env, err := ahp.Peek([]byte(message))
	if err != nil {
		t.Fatalf("Peek(%s): %v; want no error", message, err)
	}
	d = side([]byte(message), &env)
	if d.Verdict == Pass {
		return "", d
	}
	found := regexp.MustCompile(`"code":(-?\d+)`).FindSubmatch(d.Message)
	if d.Verdict != Answer && d.Verdict != Expel || found == nil {
		t.Fatalf("%s: verdict %v, message %s; want an error", message, d.Verdict, d.Message)
	}
	return string(found[1]), d
}

const passed, denied, invalid, full = "", "-32009", "-32602", "4290"

func wantCode(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: the answer has the error code %q; want %q", what, got, want)
	}
}

func greet(t *testing.T, g Gate, method, clientID string) string {
	t.Helper()
	code, d := ask(t, g, method, `{"channel":"ahp-root://","clientId":`+clientID+`}`)
	if closes := d.Verdict == Expel; closes != (code == denied) {
		t.Errorf("%s with %s: code %q and verdict %d; want Expel exactly with the code of a refusal", method, clientID, code, d.Verdict)
	}
	return code
}

// TestClientIDsBelongToTheirFirstSubject has ada use a clientId, and then bob a similar or equal
// one. Bob must be refused if a host could confuse both, also after ada has left.
func TestClientIDsBelongToTheirFirstSubject(t *testing.T) {
	for _, method := range []string{"initialize", "reconnect"} {
		for _, c := range []struct{ ada, bob, want string }{
			{`"one"`, `"one"`, denied},
			{`"one"`, `"two"`, passed},
			{`"one"`, `"\u006fne"`, denied},
			{`"one"`, `"ONE"`, denied}, // a host that ignores the case would confuse both
			{`"one"`, `" one"`, passed},
			{`"one"`, `"one\u0000"`, passed},
			{`"1"`, `1`, invalid}, // JavaScript may read 1 as "1"
			{`"one"`, `["one"]`, invalid},
			{`"one"`, `{}`, invalid},
			{`"one"`, `null`, invalid},
			{`"one"`, `""`, invalid},
			{`"one"`, `"\ud800"`, invalid},
			{`"one"`, `"one","clientId":"two"`, invalid},
			{`"one"`, `"two","ClientID":"one"`, invalid}, // encoding/json reads the last
			{`"one"`, `"two","clientI\u0044":"one"`, invalid},
			{`"one"`, `"two","x":{"clientid":"one"}`, passed},
			{`"one"`, `"` + strings.Repeat("x", maxClientIDLen) + `"`, passed},
			{`"one"`, `"` + strings.Repeat("x", maxClientIDLen+1) + `"`, invalid},
		} {
			s := NewSubjects()
			ada, bob := s.Enter(User{Subject: "ada"}), s.Enter(User{Subject: "bob"})
			wantCode(t, "the first to use "+c.ada, greet(t, ada, method, c.ada), passed)
			wantCode(t, method+" with "+c.bob+" behind "+c.ada, greet(t, bob, method, c.bob), c.want)
			again := s.Enter(User{Subject: "ada"})
			wantCode(t, "a second connection", greet(t, again, method, c.ada), passed)
			ada.Leave()
			again.Leave()
			wantCode(t, "when the first is gone, "+c.bob, greet(t, bob, method, c.bob), c.want)
		}
	}
}

func TestNoClientID(t *testing.T) {
	for _, params := range []string{`{}`, `[]`, `null`, `["one"]`, `{"channel":"ahp-root://"}`} {
		s := NewSubjects()
		ada, bob := s.Enter(User{Subject: "ada"}), s.Enter(User{Subject: "bob"})
		code, _ := ask(t, ada, "initialize", params)
		wantCode(t, "the first without a clientId", code, passed)
		code, _ = ask(t, bob, "initialize", params)
		wantCode(t, "another subject without a clientId", code, denied)
	}
}

// TestConnectionMayUseSeveralClientIDs has a connection use several clientIds. Up to maxConnIDs,
// each must belong to its subject. A further clientId must be refused, and stays free for others.
func TestConnectionMayUseSeveralClientIDs(t *testing.T) {
	s := NewSubjects()
	ada, bob := s.Enter(User{Subject: "ada"}), s.Enter(User{Subject: "bob"})
	wantCode(t, "ada", greet(t, ada, "initialize", `"a"`), passed)
	wantCode(t, "bob", greet(t, bob, "initialize", `"b"`), passed)
	wantCode(t, "bob again", greet(t, bob, "initialize", `"b"`), passed)
	wantCode(t, "bob with ada's", greet(t, bob, "reconnect", `"a"`), denied)
	for n := range maxConnIDs - 1 {
		wantCode(t, "one more", greet(t, ada, "reconnect", fmt.Sprintf(`"a%d"`, n)), passed)
	}
	wantCode(t, "a clientId too many", greet(t, ada, "initialize", `"last"`), full)
	wantCode(t, "bob with ada's last but one", greet(t, bob, "initialize", `"a3"`), denied)
	wantCode(t, "the refused one, to bob", greet(t, bob, "initialize", `"last"`), passed)
}

// TestInitializeNotificationBindsClientID sends initialize without an id, with a clientId that
// belongs to ada. The gate must close bob's connection as for a request.
func TestInitializeNotificationBindsClientID(t *testing.T) {
	s := NewSubjects()
	wantCode(t, "ada", greet(t, s.Enter(User{Subject: "ada"}), "initialize", `"a"`), passed)
	env, _ := ahp.Peek([]byte(`{"method":"initialize","params":{"clientId":"a"}}`))
	d := s.Enter(User{Subject: "bob"}).FromClient(nil, &env)
	if d.Verdict != Expel || d.Message != nil {
		t.Errorf("the gate's decision on bob's notification is %+v; want it stopped, and the connection closed", d)
	}
}

// TestConcurrentGreetingsHaveOneOwner has two subjects send the same clientId at the same moment.
// Exactly one may pass.
func TestConcurrentGreetingsHaveOneOwner(t *testing.T) {
	for range 200 {
		s := NewSubjects()
		env, _ := ahp.Peek([]byte(`{"id":1,"method":"initialize","params":{"clientId":"x"}}`))
		var won [2]bool
		var wg sync.WaitGroup
		for n, subject := range []string{"ada", "bob"} {
			wg.Go(func() { won[n] = s.Enter(User{Subject: subject}).FromClient(nil, &env).Verdict == Pass })
		}
		wg.Wait()
		if won[0] == won[1] {
			t.Fatalf("ada passes: %v; bob passes: %v; want exactly one of them", won[0], won[1])
		}
	}
}

// TestClientIDsAreForgottenWhenTheHostEnds ends the host process. Another subject may use a
// clientId then, after the connections to the old process have closed, and not before.
func TestClientIDsAreForgottenWhenTheHostEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSubjects()
		ada, bob := s.Enter(User{Subject: "ada", Write: true}), s.Enter(User{Subject: "bob", Write: true})
		greet(t, ada, "initialize", `"a"`)
		ada.Leave()
		wantCode(t, "bob, when ada is away", greet(t, bob, "reconnect", `"a"`), denied)
		greet(t, bob, "initialize", `"b"`)
		s.HostEnded()
		wantCode(t, "bob, with a connection that is open", greet(t, bob, "reconnect", `"a"`), denied)
		time.Sleep(goneTime)
		bob.Leave()
		bob = s.Enter(User{Subject: "bob", Write: true})
		wantCode(t, "bob, when his connection outlived the sign", greet(t, bob, "reconnect", `"a"`), denied)
		greet(t, bob, "initialize", `"b"`)
		s.HostEnded()
		time.Sleep(goneTime / 2)
		waits := s.Enter(User{Subject: "cleo", Write: true})
		bob.Leave()
		if s.several.Load() || s.othersWrite("cleo") || len(s.owners) != 0 {
			t.Errorf("after the host process's end, %d clientIds are left; several %v, others write %v; want 0, false, false",
				len(s.owners), s.several.Load(), s.othersWrite("cleo"))
		}
		wantCode(t, "cleo, at the next process", greet(t, waits, "initialize", `"a"`), passed)
		if !s.othersWrite("ada") {
			t.Error("cleo, connected since before the host's restart, is not counted as a writer; want it")
		}
		waits.Leave()
		waits.Leave() // a second Leave does nothing
		s.HostEnded()
		if len(s.owners) != 0 || len(s.known) != 0 {
			t.Errorf("%d clientIds and %d subjects are left; want none", len(s.owners), len(s.known))
		}
	})
}

// TestClientIDsAreBounded fills the table of clientIds. The subject with the most must make room,
// with an unused clientId, and other subjects must keep theirs.
func TestClientIDsAreBounded(t *testing.T) {
	s := NewSubjects()
	s.limit = 6
	victim := s.Enter(User{Subject: "victim"})
	greet(t, victim, "initialize", `"v1"`)
	victim.Leave()
	var greedy []*Identity
	for n := range 5 {
		g := s.Enter(User{Subject: "greedy"})
		wantCode(t, "there is room", greet(t, g, "initialize", fmt.Sprintf(`"g%d"`, n)), passed)
		greedy = append(greedy, g)
	}
	late := s.Enter(User{Subject: "late"})
	code, _ := ask(t, late, "initialize", `{"clientId":"l1"}`)
	wantCode(t, "the subject with the most uses all", code, full)
	greedy[1].Leave()
	greedy[0].Leave()
	late = s.Enter(User{Subject: "late"})
	wantCode(t, "the subject with the most makes room", greet(t, late, "initialize", `"l1"`), passed)
	wantCode(t, "the one used last stays", greet(t, late, "initialize", `"g0"`), denied)
	wantCode(t, "the victim's stays", greet(t, late, "initialize", `"v1"`), denied)
	wantCode(t, "the one that made room is free, at the cost of the next", greet(t, late, "initialize", `"g1"`), passed)
	if len(s.owners) != 6 {
		t.Errorf("%d clientIds are remembered; want 6", len(s.owners))
	}
}

// watch returns the channel for watching files below root, in VS Code's form.
func watch(root string) string {
	return "ahp-resource-watch://r/" + base64.RawURLEncoding.EncodeToString([]byte(`{"recursive":true,"root":"`+root+`"}`))
}

// others lists texts. foreign is whether a request with the text must be refused, because it may
// name a file of bob's client "Bob-1" or of an unknown client.
var others = []struct {
	text    string
	foreign bool
}{
	{"vscode-agent-client://Bob-1/file/-/x", true},
	{"VSCODE-AGENT-CLIENT://bob-1/file/-/x", true},
	{"vscode-agent-client://BOB-1", true},
	{"vscode-agent-client://bob%2D1/x", true},
	{"vscode-agent-client://%42o%62-1/x", true},
	{"vscode-agent-client://bob%252D1/x", true},
	{"vscode-agent-client%3A%2F%2Fbob-1%2Fx", true},
	{"vscode-agent-client://x:y@bob-1:80/x", true},
	{"vscode-agent-client://bob-1:/x", true},
	{"vscode-agent-client://a@b@bob-1/x", true},
	{"vscode-agent-client://bob-1?x", true},
	{"vscode-agent-client://bob-1#x", true},
	{"vscode-agent-client:////bob-1/x", true},
	{"vscode-agent-client:\\\\bob-1\\x", true},
	{"vscode-agent-client://b\to\nb-1/x", true},
	{"  vscode-agent-client://bob-1/x", true},
	{"other-scheme://bob-1/x", true}, // another host's scheme for client files
	{"//bob-1/x", true},
	{"session-db:/x?file=vscode-agent-client%3A%2F%2Fbob-1%2Fx", true},
	{"git-blob:/x#vscode-agent-client://bob-1/x", true},
	{watch("vscode-agent-client://bob-1/file/-/x"), true},
	{watch(`vscode-agent-client:\/\/\u0062ob-1\/x`), true},
	{watch("vscode-agent-client://bob%2D1/file/-/x") + "==", true},
	{strings.Replace(watch("vscode-agent-client://bob-1/file/-/x"), "//r/", "/", 1), true},
	{"ahp-resource-watch:" + watch("vscode-agent-client://bob-1/x")[len("ahp-resource-watch://r/"):], true},
	{"x://u:p@h:1/" + base64.StdEncoding.EncodeToString([]byte(`??>{"authority":"bob-1"}`)), false}, // not JSON
	{"x://u:p@h:1/" + base64.StdEncoding.EncodeToString([]byte(`{"a":"ÿÿ?>","authority":"bob-1"}`)), true},
	{"x:/" + base64.StdEncoding.EncodeToString([]byte("{\"a\":\"\xff\",\"authority\":\"\\u0062ob-1\"}")), true},
	{"x:/" + base64.StdEncoding.EncodeToString([]byte("\uFEFF{\"authority\":\"\\u0062ob-1\"}")), true},
	{watch(watch(`vscode-agent-client://bob-1/x`)), true},
	{"x://%" + strings.Repeat("25", 5) + "41/", true}, // the text may be decoded in different ways

	{"vscode-agent-client://nobody/x", true}, // another subject could use this clientId later
	{watch("vscode-agent-client://nobody/x"), true},
	{"vscode-agent-client://ada-1/file/-/x", false},
	{"vscode-agent-client://Ada%2D1/file/-/x", false},
	{watch("vscode-agent-client://ada-1/file/-/x"), false},
	{"vscode-agent-client:///x", false},
	{"vscode-agent-client:bob-1", false},
	{"file:///home/bob-1/x", false},
	{"file:///home/x/%41%2520", false},
	{"ahp-root://", false},
	{"bob-1", false},
	{"https://example.com/bob-1", false},
	{"mock:/0817384c-d11d-4e6e-8469-01ca9ae0065d", false},
	{"ahp-chat://default/bW9jazovYzBkZTU2ZGItMTQyZS00ZWY2LThjM2MtNTM2NzdiYjI3YTg1", false},
	{watch("file:///home/x"), false},
}

// twoSubjects returns the connections of ada and bob at the same host, with the clientIds "ada-1"
// and "Bob-1".
func twoSubjects(t testing.TB) (ada, bob *Identity) {
	s := NewSubjects()
	ada, bob = s.Enter(User{Subject: "ada"}), s.Enter(User{Subject: "bob"})
	for _, c := range []struct {
		of *Identity
		id string
	}{{ada, "ada-1"}, {bob, "Bob-1"}} {
		if why := c.of.subjects.bind(c.of, c.id); why != none {
			t.Fatal(why)
		}
	}
	return ada, bob
}

func TestFilesOfOthers(t *testing.T) {
	ada, bob := twoSubjects(t)
	want := map[bool]string{true: denied, false: passed}
	for _, c := range others {
		for _, one := range []struct{ method, params string }{
			{"resourceRead", `{"channel":"ahp-root://","uri":%q}`},
			{"resourceCopy", `{"source":"file:///x","destination":%q}`},
			{"resourceMove", `{"source":%q,"destination":"file:///x"}`},
			{"resourceSomethingNew", `{"options":{"list":["x",{"deep":[%q]}]}}`},
			{"createResourceWatch", `{"uri":%q,"recursive":true}`},
			{"subscribe", `{"channel":%q}`},
			{"reconnect", `{"clientId":"ada-1","subscriptions":["ahp-root://",%q]}`},
			{"initialize", `{"clientId":"ada-1","initialSubscriptions":[%q]}`},
			{"createSession", `{"channel":"mock:/1","workingDirectories":[%q]}`},
			{"resourceWrite", `{"uri":%q,"data":"x"}`},
			{"resourceRead", `[%q]`},
			{"x", `{"%[2]s":1,"%[2]s":%[1]q}`},
		} {
			params := fmt.Sprintf(one.params, c.text)
			if strings.Contains(one.params, "[2]") {
				params = fmt.Sprintf(one.params, c.text, "uri")
			}
			params = strings.ReplaceAll(params, `\x`, `\u00`) // %q writes Go's escapes; JSON needs \u00
			code, _ := ask(t, ada, one.method, params)
			wantCode(t, one.method+" "+params, code, want[c.foreign])
		}
	}
	code, _ := ask(t, bob, "resourceRead", `{"uri":"vscode-agent-client://bob-1/x"}`)
	wantCode(t, "bob's own", code, passed)
}

func TestFilesOfOthersAsObjects(t *testing.T) {
	ada, _ := twoSubjects(t)
	for _, c := range []struct{ method, params, want string }{
		{"resourceRead", `{"uri":{"scheme":"vscode-agent-client","authority":"bob-1","path":"/x"}}`, denied},
		{"resourceRead", `{"uri":{"$mid":1,"authority":"%62ob-1","scheme":"x"}}`, denied},
		{"resourceRead", `{"uri":{"\u0061uthority":"bob-1","scheme":"x"}}`, denied},
		{"resourceRead", `{"uri":{"Authority":["BOB-1"],"scheme":"x"}}`, denied},
		{"resourceRead", `{"uri":{"path":"//bob-1/x","scheme":"x"}}`, denied},
		{"resourceRead", `{"uri":{"authority":"nobody","scheme":"VSCODE-agent-client"}}`, denied},
		{"resourceRead", `{"uri":"file:///x","authority":"ssh-remote"}`, passed},
		{"resourceRead", `{"uri":{"authority":"ada-1","scheme":"vscode-agent-client"}}`, passed},
		{"resourceRead", `{"uri":"\ud800"}`, denied},
		{"resourceWrite", `{"uri":"file:///x","data":"vscode-agent-client://bob-1/x"}`, passed},
		{"resourceWrite", `{"uri":"file:///x","x":{"data":"vscode-agent-client://bob-1/x"}}`, denied},
		{"resourceWrite", `[{"data":0},"vscode-agent-client://bob-1/x"]`, denied},
		{"resourceCopy", `{"data":"vscode-agent-client://bob-1/x"}`, denied},
	} {
		code, _ := ask(t, ada, c.method, c.params)
		wantCode(t, c.method+" "+c.params, code, c.want)
	}
	code, _ := judge(t, ada.FromClient, `{"id":1,"method":"x","channel":"vscode-agent-client://bob-1/x"}`)
	wantCode(t, "a channel beside params", code, denied)
}

// TestRefusalsAreCounted causes each kind of refusal once. The callback must get each class once.
func TestRefusalsAreCounted(t *testing.T) {
	s := NewSubjects()
	var got []string
	ada := s.Enter(User{Subject: "ada", Write: true, Refused: func(class string) { got = append(got, class) }})
	bob := s.Enter(User{Subject: "bob", Write: true})
	greet(t, bob, "initialize", `"b"`)
	greet(t, ada, "initialize", `"b"`)
	greet(t, ada, "initialize", `7`)
	greet(t, ada, "initialize", `"a"`)
	ask(t, ada, "resourceRead", `{"uri":"x://b/"}`)
	judge(t, hostSide(ada), `{"id":1,"method":"resourceRead","params":{}}`)
	if !slices.Equal(got, RefusalClasses) {
		t.Errorf("refused %q; want %q", got, RefusalClasses)
	}
}

// TestSingleSubjectMayNameAnyFile requests files of other clients while only one subject has
// connected. All requests must pass, because no other subject is there to protect.
func TestSingleSubjectMayNameAnyFile(t *testing.T) {
	ada := NewSubjects().Enter(User{Subject: "ada", Write: true})
	for _, c := range others {
		code, _ := ask(t, ada, "resourceRead", fmt.Sprintf(`{"uri":%q}`, "x"+c.text[1:]))
		wantCode(t, c.text, code, passed)
	}
}

// shapes lists the texts for measuring the search: natural texts, and texts made to be expensive.
var shapes = map[string]struct {
	unit  string
	plain bool // the search must reach its end within the bound
}{
	"prose":               {"It was a dark and stormy night; the rain fell in torrents, except at 50% of times.\n", true},
	"code":                {"\t// see https://example.com/a?b=c\n\tif (a / b > 0) { return `${x}:${y}` } // or not\n", true},
	"links":               {"https://cdn.example.com/assets/images/2026/photograph%20one.jpeg\n", true},
	"base64":              {"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ/AAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg", true},
	"slashes":             {"/", false},
	"backslashes":         {"\\", false},
	"authorities":         {"//a", false},
	"own length":          {"//abcde", false},
	"colons":              {"a:", false},
	"percents":            {"%25", false},
	"percents of slashes": {"%252f%252f", false},
	"ats":                 {"@", false},
	"tabs":                {"/\t", false},
	"packed slashes":      {"Ly8v", false},
	"packed pieces":       {"Ly8vLy8v/", false},
	"packed JSON":         {"eyJhIjoiLy94In0:", false},
	"packed brackets":     {"W1tbW1tb/", false},
	"quotes":              {"\"//a ", false},
}

// shaped returns a request's params with a text of about size bytes, as one string or as many.
func shaped(t testing.TB, unit string, size int, pieces bool) []byte {
	t.Helper()
	var value any = "x " + strings.Repeat(unit, size/len(unit))
	if pieces {
		value = slices.Repeat([]string{unit}, size/(len(unit)+3))
	}
	params, err := json.Marshal(map[string]any{"text": value})
	if err != nil {
		t.Fatal(err)
	}
	return params
}

// TestSearchCostIsLinear counts the steps of the search. A text four times as long must take four
// times the steps. With the bound, no search may take many more steps than allowed, and natural
// texts must be searched to their end.
func TestSearchCostIsLinear(t *testing.T) {
	ada, _ := twoSubjects(t)
	const size = 1 << 14
	for name, shape := range shapes {
		for _, pieces := range []bool{false, true} {
			var steps [2]int
			for i, n := range []int{size, 4 * size} {
				params := shaped(t, shape.unit, n, pieces)
				l := newSearch(ada.subjects, "ada", 0)
				l.left = math.MaxInt
				l.strings(params, false, 0)
				steps[i] = math.MaxInt - l.left

				l = newSearch(ada.subjects, "ada", len(params))
				all := l.left
				found := l.strings(params, false, 0)
				if used := all - l.left; used > all+8*maxPacked+2*len(params) {
					t.Errorf("the search of %s, size %d, takes %d steps; want at most about %d", name, n, used, all)
				}
				if shape.plain && (found || l.left < 0) {
					t.Errorf("%s of %d, in pieces %v: found %v, %d steps left of %d; want it searched to its end", name, n, pieces, found, l.left, all)
				}
			}
			if steps[1] > 4*steps[0]+4*size {
				t.Errorf("%s, in pieces %v: %d steps for %d bytes, and %d for four times as many; want at most four times the steps", name, pieces, steps[0], size, steps[1])
			}
		}
	}
}

// TestExpensiveSearchIsRefused sends requests that are expensive to search. The gate must refuse
// those it cannot search within the bound, and pass natural texts.
func TestExpensiveSearchIsRefused(t *testing.T) {
	ada, _ := twoSubjects(t)
	code, d := ask(t, ada, "resourceRead", string(shaped(t, "//abcde", 1<<20, true)))
	if code != denied || !strings.Contains(string(d.Message), string(refusedSearch)) {
		t.Errorf("code %q, %.200s; want it refused because the search is too expensive", code, d.Message)
	}
	for text, want := range map[string]string{
		strings.Repeat(shapes["code"].unit, 1<<13):                                       passed,
		"data:image/png;base64," + strings.Repeat("iVBORw0KGgoAAAANSUhEUgAA/AEA", 1<<11): passed,
		"\n" + strings.Repeat("\t", 1<<17) + "vscode-agent-client://bob-1/x":             denied,
		"vscode-agent-client://" + strings.Repeat("x", 1<<17) + "@bob-1/x":               denied,
		"vscode-agent-client://bob-1/" + strings.Repeat("x y", 1<<16):                    denied,
		"ahp-resource-watch://r/" + strings.Repeat("iVBORw0KGgoAAAANSUhEUgAA", 1<<12):    denied,
	} {
		params, err := json.Marshal(map[string]string{"text": text})
		if err != nil {
			t.Fatal(err)
		}
		code, _ := ask(t, ada, "createChat", string(params))
		wantCode(t, text[:20], code, want)
	}
}

// BenchmarkForeignFile measures the search in 1 MiB. It counts processor time, which other load
// does not change.
func BenchmarkForeignFile(b *testing.B) {
	ada, _ := twoSubjects(b)
	for name, shape := range shapes {
		for _, pieces := range []bool{false, true} {
			env := ahp.Envelope{Kind: ahp.Request, Method: []byte("createChat"), Params: shaped(b, shape.unit, 1<<20, pieces)}
			b.Run(fmt.Sprintf("%s/pieces=%v", strings.ReplaceAll(name, " ", "-"), pieces), func(b *testing.B) {
				before := processorTime(b)
				for b.Loop() {
					ada.foreignFile(&env)
				}
				used := processorTime(b) - before
				b.ReportMetric(used.Seconds()*1000/float64(b.N)/(float64(len(env.Params))/(1<<20)), "ms/MiB")
				l := newSearch(ada.subjects, "ada", len(env.Params))
				all := l.left
				l.strings(env.Params, false, 0)
				b.ReportMetric(used.Seconds()*1e9/float64(b.N)/float64(all-l.left), "ns/step")
			})
		}
	}
}

// processorTime returns how much processor time this process has used.
func processorTime(t testing.TB) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// TestReverseRequestsFollowThePolicy lists connected clients. The host's request for files on the
// first must pass only while no other subject with write access is or was connected. A client with
// ReverseAlways or ReverseNever always gets the same decision.
func TestReverseRequestsFollowThePolicy(t *testing.T) {
	for _, c := range []struct {
		what  string
		there []User // the clients that have connected; the host asks the first for files
		want  string
	}{
		{"a writer alone", []User{{Subject: "ada", Write: true}}, passed},
		{"with other connections", []User{{Subject: "ada", Write: true}, {Subject: "ada", Write: true}, {Subject: "ada"}}, passed},
		{"with a reader", []User{{Subject: "ada", Write: true}, {Subject: "bob"}}, passed},
		{"with a writer", []User{{Subject: "ada", Write: true}, {Subject: "bob", Write: true}}, denied},
		{"with a writer who came first", []User{{Subject: "bob", Write: true}, {Subject: "ada", Write: true}}, denied},
		{"with a writer, but told to", []User{{Subject: "ada", Write: true, Reverse: ReverseAlways}, {Subject: "bob", Write: true}}, passed},
		{"the other's say does not help", []User{{Subject: "ada", Write: true}, {Subject: "bob", Write: true, Reverse: ReverseAlways}}, denied},
		{"a reader with a writer", []User{{Subject: "ada"}, {Subject: "bob", Write: true}}, denied},
		{"a reader whose subject also writes", []User{{Subject: "ada"}, {Subject: "ada", Write: true}}, passed},
		{"a writer alone, but told not to", []User{{Subject: "ada", Write: true, Reverse: ReverseNever}}, denied},
		{"a reader alone", []User{{Subject: "ada"}}, passed},
		{"two readers", []User{{Subject: "ada"}, {Subject: "bob"}}, passed},
	} {
		for _, left := range []bool{false, true} { // a subject that has left counts, too
			s := NewSubjects()
			var asked *Identity
			for n, who := range c.there {
				i := s.Enter(who)
				if n == 0 {
					asked = i
				} else if left {
					i.Leave()
				}
			}
			for method, want := range map[string]string{
				"resourceRead": c.want, "resourceList": c.want, "resourceWrite": c.want, "resourceRequest": c.want,
				"resourceOfTheFuture": c.want, "createResourceWatch": c.want,
				"canvasOpen": passed, "vscode/requestWorkspaceTrust": passed, "ping": passed, "root/resource": passed,
			} {
				code, _ := judge(t, hostSide(asked), `{"id":"h1","method":"`+method+`","params":{"uri":"file:///x"}}`)
				wantCode(t, fmt.Sprintf("%s, gone %v: %s", c.what, left, method), code, want)
			}
			code, _ := judge(t, hostSide(asked), `{"method":"resourceRead","params":{}}`)
			wantCode(t, "a notification", code, passed)
			code, _ = judge(t, hostSide(asked), `{"id":1,"result":{}}`)
			wantCode(t, "an answer", code, passed)
			if d := asked.FromHost([]byte("?"), nil, nil); d.Verdict != Pass {
				t.Error("the gate stops an unreadable message; want it to pass")
			}
		}
	}
}

// codeURI is the regular expression with which VS Code parses a URI.
var codeURI = regexp.MustCompile(`(?s)^(([^:/?#]+?):)?(//([^/?#]*))?([^?#]*)(\?([^#]*))?(#(.*))?`)

// FuzzForeignFiles fails if VS Code would read a text as a URI of bob's client, and the search does
// not find it.
func FuzzForeignFiles(f *testing.F) {
	for _, c := range others {
		f.Add(c.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ada, _ := twoSubjects(t)
		l := newSearch(ada.subjects, "ada", len(text))
		found := l.text([]byte(text), 0)
		parts := codeURI.FindStringSubmatch(text)
		if parts == nil {
			return
		}
		authority := parts[4]
		for _, one := range []string{authority, unescapePercent(authority)} {
			if strings.EqualFold(one, "bob-1") && !found {
				t.Errorf("VS Code reads %q as a file of bob-1, but the gate's search does not find it", text)
			}
		}
	})
}

func BenchmarkIdentity(b *testing.B) {
	ada, _ := twoSubjects(b)
	action := []byte(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"ahp-chat://default/x","clientSeq":1,"action":{"type":"x","text":"` + strings.Repeat("hello ", 80) + `"}}}`)
	notice, _ := ahp.Peek(action)
	read, _ := ahp.Peek([]byte(`{"jsonrpc":"2.0","id":1,"method":"resourceRead","params":{"channel":"ahp-root://","uri":"file:///home/ada/project/main.go"}}`))
	for _, c := range []struct {
		name string
		run  func()
	}{
		{"dispatchAction", func() { ada.FromClient(nil, &notice) }},
		{"action", func() { ada.FromHost(nil, &notice, nil) }},
		{"resourceRead", func() { ada.FromClient(nil, &read) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.run()
			}
		})
	}
}
