package hostagent

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth/gate"
)

// TestParsePorts lists the owner's settings for preview ports, valid and invalid.
func TestParsePorts(t *testing.T) {
	for text, want := range map[string]PortRange{"3000": {3000, 3000}, "3000-5999": {3000, 5999}, "1-65535": {1, 65535}} {
		if got, err := ParsePorts(text); err != nil || got != want {
			t.Errorf("ParsePorts(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-", "1-", "-1", "2-1", "0-9", "1-65536", "080", "+80", "80 ", "1-2-3", "http"} {
		if got, err := ParsePorts(text); err == nil {
			t.Errorf("ParsePorts(%q) = %v; want an error", text, got)
		}
	}
}

// TestPreviewsAreBounded opens as many previews as a subject and the host-agent may have. A further
// preview must be refused, and previews that are not used must end after previewIdle.
func TestPreviewsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := previews{open: map[string]*openPreview{}}
		add := func(subject string, port int) error {
			_, err := p.add(viewer{subject: subject, authority: "a"}, "demo:/1", uint16(port), gate.Policy{})
			return err
		}
		for i := range maxPreviews {
			if err := add(fmt.Sprint(i/subjectsPreviews), i+1); err != nil {
				t.Fatalf("preview %d, within the bounds: %v; want no error", i, err)
			}
		}
		if err := add("another", 1); !errors.Is(err, errPreviews) {
			t.Errorf("a preview above the bound for all: %v; want errPreviews", err)
		}
		p.end(func(one *openPreview) bool { return one.Subject == "1" })
		if err := add("0", 9999); !errors.Is(err, errPreviews) {
			t.Errorf("a preview above the subject's bound: %v; want errPreviews", err)
		}
		if err := add("0", 1); err != nil {
			t.Errorf("adding an open preview again: %v; want no error", err)
		}
		time.Sleep(previewIdle - time.Second)
		used := p.list(func(one *openPreview) bool { return one.Subject == "2" })[0]
		if _, ok := p.use(viewer{subject: "2", authority: "b"}, used.ID); ok {
			t.Error("a client with a different authority may use the preview; want a refusal")
		}
		if _, ok := p.use(viewer{subject: "2", authority: "a"}, used.ID); !ok {
			t.Error("the preview ended before previewIdle; want it usable")
		}
		time.Sleep(time.Second)
		p.endIdle()
		if left := p.list(func(*openPreview) bool { return true }); len(left) != 1 || left[0].ID != used.ID {
			t.Errorf("%d previews are open after previewIdle; want only the one that was used since", len(left))
		}
	})
}
