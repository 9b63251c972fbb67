package waiting_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	items "ahprelay/broker/waiting"
	"ahprelay/hostagent/waiting"
	"ahprelay/internal/sealed"
)

func open(t *testing.T, dir string) *waiting.Book {
	t.Helper()
	b, err := waiting.Open(dir, "acme", "laptop", false)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func keysOf(t *testing.T) string {
	t.Helper()
	d, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(d.Identity().Bytes())
}

// TestBookKeepsItsEntriesWhenReopened opens a Book's file again. The Book must have the same key,
// devices and entries. A damaged file must not open as an empty Book.
func TestBookKeepsItsEntriesWhenReopened(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	b := open(t, dir)
	keys := keysOf(t)
	if _, err := b.Enter(waiting.Device{Subject: "ada", ID: "d1", Keys: keys, Name: "phone"}); err != nil {
		t.Fatal(err)
	}
	result := &items.Result{ID: fmt.Sprintf("%032x", 1), Version: 3, State: items.Done}
	for id, e := range map[string]waiting.Entry{
		result.ID:               {Stage: waiting.Over, Version: 3, Expires: now.UnixMilli(), Result: result},
		fmt.Sprintf("%032x", 2): {Stage: waiting.Sending, Version: 1, Expires: now.UnixMilli()},
	} {
		if err := b.Write(id, e, now); err != nil {
			t.Fatal(err)
		}
	}
	again := open(t, dir)
	if again.PublicKey() != b.PublicKey() {
		t.Error("the reopened book has a different key; want the same")
	}
	identity, err := waiting.ReadKeys(keys)
	if err != nil {
		t.Fatal(err)
	}
	name := identity.Fingerprint().String()
	if _, ok := again.Signer("ada", "d1", name); !ok {
		t.Error("the reopened book does not know the device; want its signer")
	}
	for what, ok := range map[string]bool{"a different person": has(again, "eve", "d1", name), "a different device": has(again, "ada", "d2", name)} {
		if ok {
			t.Errorf("the book has the device's keys for %s; want none", what)
		}
	}
	if e, ok := again.Entry(fmt.Sprintf("%032x", 2)); !ok || e.Stage != waiting.Sending {
		t.Errorf("the entry is %+v, %v; want sending", e, ok)
	}
	if ids := again.Unreported(); len(ids) != 1 || ids[0] != result.ID {
		t.Errorf("the unreported entries are %v; want the one with a result", ids)
	}
	if err := os.WriteFile(filepath.Join(dir, waiting.FileName("acme", "laptop")), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := waiting.Open(dir, "acme", "laptop", false); err == nil {
		t.Error("a damaged journal opens; want an error")
	}
}

func has(b *waiting.Book, subject, id, name string) bool {
	_, ok := b.Signer(subject, id, name)
	return ok
}

// TestBookIsBounded enters more devices for a person than a Book keeps, and more entries. The
// oldest device must go; without reported old entries, a further entry must fail.
func TestBookIsBounded(t *testing.T) {
	b := open(t, t.TempDir())
	for i := range items.MaxOwn + 3 {
		list, err := b.Enter(waiting.Device{Subject: "ada", ID: fmt.Sprint("d", i), Keys: keysOf(t)})
		if err != nil {
			t.Fatal(err)
		}
		if want := min(i+1, items.MaxOwn); len(list) != want || list[len(list)-1].ID != fmt.Sprint("d", i) {
			t.Fatalf("after %d devices, the book lists %d, or the last is not the newest; want at most MaxOwn", i+1, len(list))
		}
	}
	if _, err := b.Enter(waiting.Device{Subject: "ada", ID: "bad", Keys: "AAAA"}); err == nil {
		t.Error("a device with bad keys is kept; want an error")
	}
	now := time.Now()
	old := now.Add(-48 * time.Hour).UnixMilli()
	for i := range waiting.MaxEntries {
		if err := b.Write(fmt.Sprint(i), waiting.Entry{Stage: waiting.Over, Expires: old, Reported: i == 0}, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Write("a", waiting.Entry{Expires: old}, now); err != nil {
		t.Errorf("writing an entry when reported old entries fill the journal: %v; want no error", err)
	}
	if err := b.Write("b", waiting.Entry{Expires: old}, now); err == nil {
		t.Error("the journal accepts more entries than its bound; want ErrFull")
	}
}

// TestReportedEntriesMakeRoom fills a Book. A new entry must replace the reported entry that
// expires first, and fail if none was reported.
func TestReportedEntriesMakeRoom(t *testing.T) {
	b, now := open(t, t.TempDir()), time.Now()
	id := func(i int) string { return fmt.Sprintf("%032x", i) }
	write := func(i int, reported bool, expires time.Time) error {
		return b.Write(id(i), waiting.Entry{Stage: waiting.Over, Version: 1, Expires: expires.UnixMilli(), Reported: reported}, now)
	}
	for i := range waiting.MaxEntries {
		if err := write(i, i == 7 || i == 8, now.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	for i, gone := range []int{7, 8} {
		if err := write(1000+i, false, now); err != nil {
			t.Errorf("writing entry %d, for which a reported one makes room: %v; want no error", 1000+i, err)
		}
		if _, there := b.Entry(id(gone)); there {
			t.Errorf("reported entry %d is still in the journal; want it removed", gone)
		}
	}
	if err := write(2000, false, now); err != waiting.ErrFull {
		t.Errorf("without reported entries: %v; want ErrFull", err)
	}
	if err := b.Write(id(2001), waiting.Entry{Stage: waiting.Sending, Version: 1, Expires: now.UnixMilli()}, now.Add(9*24*time.Hour)); err != nil {
		t.Errorf("writing an entry nine days later: %v; want no error", err)
	}
}

// TestStrictBookKeepsReportedEntries fills the Book of a sealed host. A relay may offer a
// reported item again, so its entry must stay until the item has expired.
func TestStrictBookKeepsReportedEntries(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	secret, err := sealed.NewSecret()
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]waiting.Entry{}
	for i := range waiting.MaxEntries {
		entries[fmt.Sprint(i)] = waiting.Entry{Stage: waiting.Over, Expires: now.UnixMilli(), Reported: true}
	}
	full, err := json.Marshal(map[string]any{"secret": secret.Private(), "entries": entries})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, waiting.FileName("acme", "laptop")), full, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := waiting.Open(dir, "acme", "laptop", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Write("a", waiting.Entry{Expires: now.UnixMilli()}, now); err == nil {
		t.Error("the full journal accepts a new entry in place of one whose item a relay may offer again; want an error")
	}
	if err := b.Write("a", waiting.Entry{Expires: now.UnixMilli()}, now.Add(48*time.Hour)); err != nil {
		t.Errorf("writing an entry after the end of the items in a full journal: %v; want no error, because their entries make room", err)
	}
}

// TestDropIsRepeatedAfterAnError drops a device while the file cannot be written. The device must
// stay, so that the next attempt also changes the file.
func TestDropIsRepeatedAfterAnError(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	list, err := b.Enter(waiting.Device{Subject: "ada", ID: "named", Name: strings.Repeat("é", 60) + "x", Keys: keysOf(t)})
	if err != nil || !utf8.ValidString(list[0].Name) {
		t.Fatalf("the device is entered as %+v, %v; want a name of valid UTF-8", list, err)
	}
	if list, err = b.Enter(waiting.Device{Subject: "ada", ID: "named", Name: "x" + strings.Repeat("é", 60), Keys: keysOf(t)}); err != nil || !utf8.ValidString(list[0].Name) {
		t.Fatalf("the device is entered as %+v, %v; want a name of valid UTF-8", list, err)
	}
	path := filepath.Join(dir, waiting.FileName("acme", "laptop"))
	if err := errors.Join(os.Rename(path, path+".kept"), os.MkdirAll(filepath.Join(path, "full"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := b.Drop([]string{"named"}); err == nil || len(b.Devices()) != 1 {
		t.Errorf("Drop without a file: %v, and the devices %v; want an error, and the device", err, b.Devices())
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := b.Drop([]string{"named"}); err != nil || len(open(t, dir).Devices()) != 0 {
		t.Errorf("the second Drop: %v; want that the file has no device", err)
	}
}

// TestRelayRemovesOnlyDevicesThatItNamed drops a relay's list of removed devices. A device that
// gave its keys inside a sealed connection must stay.
func TestRelayRemovesOnlyDevicesThatItNamed(t *testing.T) {
	b := open(t, t.TempDir())
	for _, d := range []waiting.Device{
		{Subject: "ada", ID: "named", Keys: keysOf(t)},
		{Subject: "ada", ID: "vouched", Keys: keysOf(t), Vouch: &waiting.Vouch{}},
	} {
		if _, err := b.Enter(d); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Drop([]string{"named", "vouched"}); err != nil {
		t.Fatal(err)
	}
	left, err := b.Enter(waiting.Device{Subject: "ada", ID: "new", Keys: keysOf(t), Vouch: &waiting.Vouch{}})
	if err != nil || len(left) != 2 || left[0].ID != "vouched" || len(b.Devices()) > 0 {
		t.Errorf("the book has %v, and of the relay's %v, %v; want the vouched device, and none of the relay's", left, b.Devices(), err)
	}
}

// TestFailedEntryChangesNothing enters new keys of a device while the file cannot be written. The
// Book must keep the device's earlier keys, and all other devices.
func TestFailedEntryChangesNothing(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	names := map[string]string{}
	for _, id := range []string{"phone", "laptop"} {
		keys := keysOf(t)
		identity, err := waiting.ReadKeys(keys)
		if err == nil {
			_, err = b.Enter(waiting.Device{Subject: "ada", ID: id, Keys: keys})
		}
		if err != nil {
			t.Fatal(err)
		}
		names[id] = identity.Fingerprint().String()
	}
	path := filepath.Join(dir, waiting.FileName("acme", "laptop"))
	if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "full"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Enter(waiting.Device{Subject: "ada", ID: "phone", Keys: keysOf(t)}); err == nil {
		t.Error("entering a device without a file succeeds; want an error")
	}
	for id, name := range names {
		if !has(b, "ada", id, name) {
			t.Errorf("the book has lost the keys of the %s; want them kept", id)
		}
	}
	if ids := b.Devices(); len(ids) != 2 {
		t.Errorf("the book has the devices %q; want phone and laptop", ids)
	}
}
