package sealed

import (
	"bytes"
	"crypto/ecdh"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
)

var update = flag.Bool("update", false, "write testdata/vectors.json")

// hexBytes are bytes which JSON contains in hexadecimal form.
type hexBytes []byte

func (h hexBytes) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h)), nil }

func (h *hexBytes) UnmarshalText(text []byte) (err error) {
	*h, err = hex.DecodeString(string(text))
	return err
}

// vectors is the content of testdata/vectors.json.
type vectors struct {
	Codes []struct {
		Bytes  hexBytes `json:"bytes"`
		Text   string   `json:"text"`
		Typed  string   `json:"typed"`
		Secret hexBytes `json:"secret"`
	} `json:"codes"`
	BadCodes []string `json:"badCodes"`
	Padding  [][2]int `json:"padding"`
	Devices  []struct {
		Key         hexBytes `json:"key"`    // private X25519 key
		Signer      hexBytes `json:"signer"` // private P-256 key
		Public      hexBytes `json:"public"`
		Verifier    hexBytes `json:"verifier"`
		Fingerprint string   `json:"fingerprint"`
		Words       string   `json:"words"`
	} `json:"devices"`
	Host struct {
		Key         hexBytes `json:"key"`
		Public      hexBytes `json:"public"`
		Fingerprint string   `json:"fingerprint"`
		Words       string   `json:"words"`
	} `json:"host"`
	Grants []struct {
		Text   string `json:"text"`   // the grant; devices[0] has signed it for devices[1]
		Signed string `json:"signed"` // the JSON that the signature covers
		Error  bool   `json:"error,omitempty"`
	} `json:"grants"`
	Handshakes []vectorHandshake `json:"handshakes"`
	Pushes     []vectorPush      `json:"pushes"`
}

// A vectorPush is a push notification to devices[0], and the device's answer if it has one.
type vectorPush struct {
	Host      string   `json:"host"`      // the host's name
	Verifier  hexBytes `json:"verifier"`  // verifies the host's signatures
	Browser   hexBytes `json:"browser"`   // private P-256 key
	P256dh    string   `json:"p256dh"`    // base64url
	Auth      string   `json:"auth"`      // base64url
	Push      hexBytes `json:"push"`      // encrypted body for the push service
	Plaintext string   `json:"plaintext"` // plaintext of the push: JSON
	Note      string   `json:"note"`      // the member body in Plaintext
	Event     string   `json:"event"`     // the event's id
	Answer    string   `json:"answer,omitempty"`
	Content   string   `json:"content,omitempty"` // plaintext of the answer
	Result    string   `json:"result,omitempty"`
	Proof     string   `json:"proof,omitempty"` // base64url
}

// makePushes returns two pushes: a question with its answer, and the message that withdraws the
// question.
func makePushes(t *testing.T, host Key) (list []vectorPush) {
	t.Helper()
	browser, err := ecdh.P256().NewPrivateKey(fixed(33, 32))
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	device, signer := vectorDevice(t, 1), vectorDevice(t, 97)
	verifier := signer.Identity().Verifier
	event, nonce := Fingerprint(fixed(0, 16)).String(), Fingerprint(fixed(16, 16)).String()
	to := `{"to":"` + device.Identity().Fingerprint().String() + `","id":"` + event + `","at":"2026-11-27T02:30:00Z","host":"laptop",`
	for _, note := range []string{
		to + `"nonce":"` + nonce + `","kind":"approval","session":"ahp-session:/abc","title":"Fix the login test","text":"Run a command","detail":"go test ./…","says":"laptop needs you",` +
			`"answers":[{"label":"Allow once","deny":false,"option":"allow"},{"label":"Skip","deny":true,"option":"skip"}]}`,
		to + `"withdrawn":true}`,
	} {
		p := vectorPush{Host: "laptop", Verifier: verifier[:], Browser: fixed(33, 32), P256dh: encode(browser.PublicKey().Bytes()), Auth: encode(fixed(0, 16)), Note: note, Event: event}
		signature, err := signer.SignNote(PushNote, []byte(note))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := json.Marshal(map[string]any{"sealed": p.Host, "body": note, "signature": signature})
		if err != nil {
			t.Fatal(err)
		}
		p.Plaintext = string(plain)
		if p.Push, err = (Subscription{P256dh: p.P256dh, Auth: p.Auth}).Encrypt(plain); err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	answered := &list[0]
	answer, err := device.WriteReply(host, event, Reply{Nonce: nonce, Option: "allow"})
	if err != nil {
		t.Fatal(err)
	}
	answered.Answer, answered.Content, answered.Result = string(answer), `{"nonce":"`+nonce+`","option":"allow"}`, "given"
	proof, err := signer.SignNote(OutcomeNote, OutcomeText(answer, answered.Result))
	if err != nil {
		t.Fatal(err)
	}
	answered.Proof = encode(proof)
	return list
}

// A vectorHandshake is a handshake between devices[0] and the host, with the records that follow
// it.
type vectorHandshake struct {
	Name            string         `json:"name"`
	Host            string         `json:"host"`
	Code            string         `json:"code,omitempty"`
	KnowsHostKey    bool           `json:"knowsHostKey"`
	ClientEphemeral hexBytes       `json:"clientEphemeral"`
	HostEphemeral   hexBytes       `json:"hostEphemeral"`
	Prologue        hexBytes       `json:"prologue"`
	Greeting        string         `json:"greeting"`
	Frames          []vectorFrame  `json:"frames"`
	ID              hexBytes       `json:"id"`
	Records         []vectorRecord `json:"records"`
}

type vectorFrame struct {
	ToHost bool     `json:"toHost"`
	Bytes  hexBytes `json:"bytes"`
}

type vectorRecord struct {
	ToHost  bool       `json:"toHost"`
	Content int        `json:"content"`
	Body    hexBytes   `json:"body"`             // plaintext of the record
	Opened  hexBytes   `json:"opened,omitempty"` // the message or part in its final form
	Shared  []hexBytes `json:"shared,omitempty"` // messages in shared bodies; then there is no record
	Epoch   hexBytes   `json:"epoch,omitempty"`  // their key: body of the EpochKey parcel
	From    uint32     `json:"from,omitempty"`   // number of the first shared body
	Frames  []hexBytes `json:"frames"`           // sealed record, or bodies with their tag
}

// shared returns the frames for the shared messages: their bodies, and the host's tag for bodies
// that follow n records.
func (r *vectorRecord) shared(t *testing.T, host *Session, n uint64) (frames [][]byte) {
	t.Helper()
	epoch, err := newEpoch(binary.BigEndian.Uint32(r.Epoch), [32]byte(r.Epoch[4:]))
	if err != nil {
		t.Fatal(err)
	}
	epoch.count = uint64(r.From)
	all := sha256.New()
	for _, message := range r.Shared {
		bodies, err := epoch.Seal(message)
		if err != nil {
			t.Fatal(err)
		}
		for _, body := range bodies {
			sum := sha256.Sum256(body)
			all.Write(sum[:])
		}
		frames = append(frames, bodies...)
	}
	host.Give(len(frames))
	tag := host.Tag([32]byte(all.Sum(nil)), n)
	return append(frames, append([]byte{byte(kindTag)}, tag[:]...))
}

const vectorFile = "testdata/vectors.json"

// fixed returns n bytes that count up from the number from.
func fixed(from, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(from + i)
	}
	return b
}

func vectorDevice(t testing.TB, from int) *Device {
	t.Helper()
	d, err := ReadDevice(fixed(from, 64))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// makeVectors returns vectors made anew, with fixed keys.
func makeVectors(t *testing.T) *vectors {
	t.Helper()
	v := &vectors{BadCodes: []string{"", "0000-0000", strings.Repeat("0", 27), strings.Repeat("0", 25) + "1", strings.Repeat("0", 25) + "U", strings.Repeat("0", 25) + "ß"}}
	for _, b := range [][]byte{make([]byte, 16), bytes.Repeat([]byte{255}, 16), fixed(1, 16)} {
		code := Code(b)
		v.Codes = append(v.Codes, struct {
			Bytes  hexBytes `json:"bytes"`
			Text   string   `json:"text"`
			Typed  string   `json:"typed"`
			Secret hexBytes `json:"secret"`
		}{b, code.String(), strings.NewReplacer("-", " ", "0", "o", "1", "l").Replace(strings.ToLower(code.String())), code.secret()})
	}
	for _, n := range []int{0, 1, 2, 5, 7, 8, 9, 13, 31, 33, 64, 65, 100, 1000, 1023, 1025, 4101, 65541, 1048581, 134217728} {
		v.Padding = append(v.Padding, [2]int{n, Padded(n)})
	}
	for _, from := range []int{1, 65} {
		id := vectorDevice(t, from).Identity()
		v.Devices = append(v.Devices, struct {
			Key         hexBytes `json:"key"`
			Signer      hexBytes `json:"signer"`
			Public      hexBytes `json:"public"`
			Verifier    hexBytes `json:"verifier"`
			Fingerprint string   `json:"fingerprint"`
			Words       string   `json:"words"`
		}{fixed(from, 32), fixed(from+32, 32), id.Key[:], id.Verifier[:], id.Fingerprint().String(), id.Fingerprint().Words()})
	}
	v.Host.Key = fixed(129, 32)
	host, err := ReadSecret(v.Host.Key)
	if err != nil {
		t.Fatal(err)
	}
	public := host.Public()
	v.Host.Public, v.Host.Fingerprint, v.Host.Words = public[:], HostFingerprint(public).String(), HostFingerprint(public).Words()
	text, err := vectorDevice(t, 1).SignGrant(public, Grant{
		Device: vectorDevice(t, 65).Identity(), Subject: "ada", Level: auth.AccessTalk, Channels: []string{"ahp-session:/abc"},
		From: time.Unix(1800000000, 0), End: time.Unix(1800086400, 0), Serial: Fingerprint(fixed(0, 16)).String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	grant, err := ReadGrant(text)
	if err != nil {
		t.Fatal(err)
	}
	flipped := []byte(text)
	flipped[len(flipped)-10] ^= 1
	type line = struct {
		Text   string `json:"text"`
		Signed string `json:"signed"`
		Error  bool   `json:"error,omitempty"`
	}
	v.Grants = append(v.Grants, line{text, string(grant.body), false}, line{string(flipped), string(grant.body), true})
	v.Pushes = makePushes(t, public)
	code := Code(fixed(1, 16))
	v.Handshakes = []vectorHandshake{
		{Name: "connect", Host: "laptop", KnowsHostKey: true, Greeting: `{"name":"phone","verifier":"","window":30}`},
		{Name: "connect with a grant", Host: "laptop", KnowsHostKey: true, Greeting: `{"name":"phone","verifier":"","window":615,"grants":["` + text + `"]}`},
		{Name: "pair by a typed code", Host: "build-7", Code: code.String(), Greeting: `{"name":"Ada’s phone","verifier":"","window":30}`},
		{Name: "pair by a scanned code", Host: "laptop", Code: code.String(), KnowsHostKey: true, Greeting: `{"name":"","verifier":"","window":15}`},
		{Name: "connect by a link", Host: "laptop", KnowsHostKey: true, Greeting: `{"name":"phone","verifier":"","window":30,"viewer":"` + Fingerprint(fixed(7, 16)).String() + `"}`},
	}
	for i := range v.Handshakes {
		v.Handshakes[i].ClientEphemeral, v.Handshakes[i].HostEphemeral = fixed(160+i, 32), fixed(200+i, 32)
		v.Handshakes[i].run(t, v, true)
	}
	return v
}

// run performs the handshake with the vector's keys. If fill is set, it stores the result in the
// vector, else it compares them.
func (h *vectorHandshake) run(t *testing.T, v *vectors, fill bool) {
	t.Helper()
	secret, err := ReadSecret(v.Host.Key)
	if err != nil {
		t.Fatal(err)
	}
	device, err := ReadDevice(append(bytes.Clone(v.Devices[0].Key), v.Devices[0].Signer...))
	if err != nil {
		t.Fatal(err)
	}
	cfg := InitiatorConfig{Host: h.Host, Device: device, Limit: 1 << 20, Random: bytes.NewReader(h.ClientEphemeral)}
	if err := json.Unmarshal([]byte(h.Greeting), &cfg.Greeting); err != nil {
		t.Fatal(err)
	}
	var code Code
	purpose := Connect
	if h.Code != "" {
		if code, err = ParseCode(h.Code); err != nil {
			t.Fatal(err)
		}
		cfg.Code, purpose = &code, Pair
	}
	if key := secret.Public(); h.KnowsHostKey {
		cfg.HostKey = &key
	}
	responder := NewResponder(ResponderConfig{Host: h.Host, Secret: secret, Code: func() (Code, bool) { return code, true }, Limit: 1 << 20, Random: bytes.NewReader(h.HostEphemeral)})
	initiator, frame, err := NewInitiator(cfg)
	var client *Session
	var arrival *Arrival
	var frames []vectorFrame
	for err == nil && arrival == nil {
		frames = append(frames, vectorFrame{true, bytes.Clone(frame)})
		if frame, arrival, err = responder.Read(frame); err != nil || arrival != nil {
			break
		}
		frames = append(frames, vectorFrame{false, bytes.Clone(frame)})
		frame, client, err = initiator.Read(frame)
	}
	if err != nil {
		t.Fatalf("the handshake %s: %v; want no error", h.Name, err)
	}
	greeting, err := json.Marshal(initiator.cfg.Greeting)
	if err != nil {
		t.Fatal(err)
	}
	if fill {
		h.Prologue, h.Frames, h.ID, h.Greeting = prologue(h.Host, purpose), frames, client.hash, string(greeting)
		h.fillRecords(t, client, arrival.Session)
		return
	}
	if string(greeting) != h.Greeting || !bytes.Equal(prologue(h.Host, purpose), h.Prologue) || !bytes.Equal(client.hash, h.ID) || !bytes.Equal(arrival.Session.hash, h.ID) || len(frames) != len(h.Frames) {
		t.Fatalf("%s: the handshake differs from the vector's; want the same bytes", h.Name)
	}
	for i, f := range frames {
		if f.ToHost != h.Frames[i].ToHost || !bytes.Equal(f.Bytes, h.Frames[i].Bytes) {
			t.Errorf("%s: frame %d of the handshake is %x; want the vector's %x", h.Name, i, f.Bytes, h.Frames[i].Bytes)
		}
	}
	h.checkRecords(t, client, arrival.Session)
}

func (h *vectorHandshake) fillRecords(t *testing.T, client, host *Session) {
	t.Helper()
	long := []byte(`{"jsonrpc":"2.0","id":7,"result":{"text":"` + strings.Repeat("all work and no play ", 300) + `"}}`)
	large := "short" // only one vector has a long message
	if h.Name == "connect" {
		large = strings.Repeat("0123456789abcdef", 4100)
	}
	epoch := slices.Concat([]byte{0, 0, 0, 7}, fixed(33, 32))
	notification := func(text string) hexBytes {
		return hexBytes(`{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-chat:/abc","text":"` + text + `"}}`)
	}
	state := []byte(`{"resource":"ahp-session:/abc","fromSeq":4,"state":{}}`)
	whole := slices.Concat([]byte(`{"jsonrpc":"2.0","id":3,"result":{"snapshot":`), state, []byte("}}"))
	admission := Admission{Subject: "owner", Level: auth.AccessAdmin, End: 1800000000}
	if strings.Contains(h.Greeting, `"viewer"`) {
		admission = Admission{Level: auth.AccessRead, End: 1800000000}
	}
	welcome, err := admission.Encode()
	if err != nil {
		t.Fatal(err)
	}
	result := slices.Concat([]byte(`{"snapshot":`), state, []byte("}"))
	part := fixed(65, 32)
	var bodies uint32
	for _, r := range []struct {
		toHost  bool
		content Content
		body    []byte
		shared  []hexBytes
	}{
		{false, Pending, nil, nil},
		{false, Welcome, welcome, nil},
		{true, Message, []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://"}}`), nil},
		{true, Heartbeat, []byte{0, 0, 0, 0, 0, 0, 0, 2}, nil},
		{false, Message, long, nil},
		{false, Message, []byte(`{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-session:/abc"}}`), nil},
		{true, Message, []byte(`{"jsonrpc":"2.0","id":2,"method":"x","params":{"text":"` + large + `"}}`), nil},
		{false, EpochKey, epoch, nil},
		{false, Message, nil, []hexBytes{notification("one")}},
		{false, Heartbeat, []byte{0, 0, 0, 0, 0, 0, 0, 5}, nil},
		{false, Message, nil, []hexBytes{notification("two"), notification(large), notification("three")}},
		{false, Part, state, nil},
		{false, Joined, AppendJoined(part, whole, bytes.Index(whole, state), len(state)), nil},
		{false, Part, result, nil},
		{false, Joined, AppendJoined(part, whole, bytes.Index(whole, result), len(result)), nil},
		{true, Ask, []byte(`{"id":1,"do":"devices"}`), nil},
		{false, Answer, []byte(`{"id":1,"devices":[]}`), nil},
		{false, Close, AppendClose(ahp.CloseTokenEnded, "removed"), nil},
	} {
		from := host
		if r.toHost {
			from = client
		}
		line := vectorRecord{ToHost: r.toHost, Content: int(r.content), Body: r.body, Shared: r.shared}
		if r.shared != nil {
			line.Epoch, line.From = epoch, bodies
			for _, frame := range line.shared(t, host, host.out.count) {
				line.Frames = append(line.Frames, frame)
			}
			bodies += uint32(len(line.Frames) - 1)
			h.Records = append(h.Records, line)
			continue
		}
		switch r.content {
		case Part:
			line.Epoch, line.Body, line.Opened = slices.Concat(make([]byte, 4), part), deflate(r.body), r.body
		case Joined:
			line.Opened = whole
		}
		frames, err := line.seal(from)
		if err != nil {
			t.Fatal(err)
		}
		for _, frame := range frames {
			line.Frames = append(line.Frames, frame)
		}
		if bytes.Equal(r.body, long) {
			line.Content, line.Body, line.Opened = int(packed), deflate(long), long
		}
		h.Records = append(h.Records, line)
	}
}

// seal returns the frames for a record, or for a part in a shared body with its tag.
func (r *vectorRecord) seal(from *Session) (frames [][]byte, err error) {
	if Content(r.Content) != Part {
		return from.Seal(Content(r.Content), r.Body)
	}
	e, err := newEpoch(binary.BigEndian.Uint32(r.Epoch), [32]byte(r.Epoch[4:]))
	if err != nil {
		return nil, err
	}
	e.count = uint64(r.From)
	if frames, err = e.seal(Part, r.Body); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(frames[0])
	from.Give(1)
	tag := from.Tag(sha256.Sum256(sum[:]), from.out.count)
	return append(frames, append([]byte{byte(kindTag)}, tag[:]...)), nil
}

func (h *vectorHandshake) checkRecords(t *testing.T, client, host *Session) {
	t.Helper()
	for i, r := range h.Records {
		from, to := host, client
		if r.ToHost {
			from, to = client, host
		}
		if r.Shared != nil {
			h.checkShared(t, &r, client, host)
			continue
		}
		frames, err := r.seal(from)
		if err != nil || !slices.EqualFunc(frames, r.Frames, func(a []byte, b hexBytes) bool { return bytes.Equal(a, b) }) {
			t.Fatalf("%s: record %d is %x, %v; want %x", h.Name, i, frames, err, r.Frames)
		}
		want, body := Content(r.Content), []byte(r.Body)
		if want == packed || want == Joined {
			want, body = Message, r.Opened
		}
		var content Content
		var got []byte
		for j, frame := range r.Frames {
			var done bool
			if content, got, done, err = to.Open(bytes.Clone(frame)); done != (j == len(r.Frames)-1 && Content(r.Content) != EpochKey && Content(r.Content) != Part) {
				break
			}
		}
		if Content(r.Content) == Part { // Open returns nothing, but keeps it
			if err != nil || len(client.hearing.part) != 1 {
				t.Fatalf("%s: of a part, %d bodies are kept, %v; want 1", h.Name, len(client.hearing.part), err)
			}
			continue
		}
		if Content(r.Content) == EpochKey { // Open returns nothing, but keeps it
			if err != nil || len(client.hearing.epochs) != 1 {
				t.Fatalf("%s: the epoch's key is not kept: %v; want one epoch", h.Name, err)
			}
			continue
		}
		if err != nil || content != want || !bytes.Equal(got, body) {
			t.Fatalf("%s: record %d opens as %d %q, %v; want %d %q", h.Name, i, content, got, err, want, body)
		}
	}
}

// checkShared seals a record's shared messages and compares the frames with the vector, then opens
// them at the client and compares the messages.
func (h *vectorHandshake) checkShared(t *testing.T, r *vectorRecord, client, host *Session) {
	t.Helper()
	frames := r.shared(t, host, host.out.count)
	if !slices.EqualFunc(frames, r.Frames, func(a []byte, b hexBytes) bool { return bytes.Equal(a, b) }) {
		t.Fatalf("%s: shared messages are sealed as %x; want %x", h.Name, frames, r.Frames)
	}
	var got [][]byte
	for _, frame := range frames {
		_, body, done, err := client.Open(bytes.Clone(frame))
		if err != nil {
			t.Fatalf("opening a frame of %s: %v; want no error", h.Name, err)
		}
		for ; done; _, body, done = client.Next() {
			got = append(got, body)
		}
	}
	if !slices.EqualFunc(got, r.Shared, func(a []byte, b hexBytes) bool { return bytes.Equal(a, b) }) {
		t.Errorf("%s: shared messages open as %q; want %q", h.Name, got, r.Shared)
	}
}

func TestVectorsAreReproduced(t *testing.T) {
	if *update {
		data, err := json.MarshalIndent(makeVectors(t), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vectorFile, append(data, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	for _, c := range v.Codes {
		code, err := ParseCode(c.Typed)
		if err != nil || !bytes.Equal(code[:], c.Bytes) || code.String() != c.Text || !bytes.Equal(code.secret(), c.Secret) {
			t.Errorf("ParseCode(%s) = %x, %v; want the vector's bytes", c.Typed, code, err)
		}
	}
	for _, bad := range v.BadCodes {
		if code, err := ParseCode(bad); err == nil {
			t.Errorf("ParseCode(%q) = %x; want an error", bad, code)
		}
	}
	for _, p := range v.Padding {
		if got := Padded(p[0]); got != p[1] {
			t.Errorf("Padded(%d) = %d; want %d", p[0], got, p[1])
		}
	}
	for _, d := range v.Devices {
		device, err := ReadDevice(append(bytes.Clone(d.Key), d.Signer...))
		if err != nil {
			t.Fatal(err)
		}
		id := device.Identity()
		if !bytes.Equal(id.Key[:], d.Public) || !bytes.Equal(id.Verifier[:], d.Verifier) || id.Fingerprint().String() != d.Fingerprint || id.Fingerprint().Words() != d.Words {
			t.Errorf("the device %s has the fingerprint %s and words %s; want the vector's", d.Fingerprint, id.Fingerprint(), id.Fingerprint().Words())
		}
	}
	if key := Key(v.Host.Public); HostFingerprint(key).String() != v.Host.Fingerprint || HostFingerprint(key).Words() != v.Host.Words {
		t.Error("the host's fingerprint differs from the vector's; want the same")
	}
	for i, g := range v.Grants {
		grant, err := ReadGrant(g.Text)
		if err != nil || string(grant.body) != g.Signed {
			t.Fatalf("reading grant %d: %v; want the signed text", i, err)
		}
		if Verifier(v.Devices[0].Verifier).verify(signedGrant(grant.body), grant.signature) == g.Error {
			t.Errorf("grant %d is valid: %v; want %v", i, g.Error, !g.Error)
		}
	}
	for i := range v.Handshakes {
		v.Handshakes[i].run(t, &v, false)
	}
}

// TestWelcomesAreReadAsWritten encodes admissions with each level. ReadAdmission must return the
// same, and refuse an unknown level.
func TestWelcomesAreReadAsWritten(t *testing.T) {
	for i, level := range auth.Levels() {
		for _, subject := range []string{"", "ada"} {
			a := Admission{subject, level, 1800000000}
			body, err := a.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if got, err := ReadAdmission(body); err != nil || got != a {
				t.Errorf("%q is read as %+v, %v; want %+v", body, got, err, a)
			}
			if subject == "" && !bytes.Equal(body, append([]byte{byte(i)}, 0, 0, 0, 0, 0x6b, 0x49, 0xd2, 0)) {
				t.Errorf("a viewer's welcome is written as %x, which is not the expected form", body)
			}
		}
	}
	if a, err := ReadAdmission(append([]byte{byte(len(auth.Levels()))}, make([]byte, 8)...)); err == nil {
		t.Errorf("a welcome with an unknown level is read as %+v; want an error", a)
	}
}

// TestVerifiersHaveAShortForm encodes verifiers in their compressed form. They must decode as the
// same, and an x without a point must be refused.
func TestVerifiersHaveAShortForm(t *testing.T) {
	signs := map[byte]bool{}
	for range 20 {
		d, err := NewDevice()
		if err != nil {
			t.Fatal(err)
		}
		v := d.Identity().Verifier
		short := v.short()
		signs[short[0]] = true
		if got, err := readShort(short); err != nil || got != v {
			t.Errorf("%x is read as %x, %v; want %x", short, got, err, v)
		}
	}
	if len(signs) != 2 {
		t.Errorf("the short forms of the keys begin with the bytes %v; want 2 and 3", signs)
	}
	for _, bad := range [][]byte{nil, make([]byte, shortVerifier), append([]byte{2}, bytes.Repeat([]byte{255}, 32)...), append([]byte{2}, append(make([]byte, 31), 1)...)} {
		if v, err := readShort(bad); err == nil {
			t.Errorf("%x is read as %x", bad, v)
		}
	}
}
