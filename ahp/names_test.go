package ahp_test

import (
	"strings"
	"testing"

	"ahprelay/ahp"
)

func TestNamesWithSeparatorsAreRefused(t *testing.T) {
	for _, name := range []string{"a", "0", "-", "my-host-2", "--", strings.Repeat("z", ahp.MaxNameLen)} {
		if err := ahp.CheckName("host", name); err != nil {
			t.Errorf("CheckName(host, %q): %v; want no error", name, err)
		}
	}
	refused := []string{
		"",
		strings.Repeat("z", ahp.MaxNameLen+1),
		// These are several NATS tokens, or wildcards.
		"a.b", "*", ">", "a b", "$js",
		// These change a URL's path.
		"a/b", "..", "a%2fb",
		// DNS ignores case, so names have no upper case.
		"A", "aZ",
		// These bytes are next to the allowed ranges.
		"`", "{", "/", ":", ",", "_",
		"é", "a\x00", "a\n", "\xff",
	}
	for _, name := range refused {
		err := ahp.CheckName("host", name)
		if err == nil {
			t.Errorf("CheckName(host, %q) = nil; want an error", name)
		} else if !strings.HasPrefix(err.Error(), "host ") {
			t.Errorf("CheckName(host, %q) = %v; want it to begin with host", name, err)
		}
	}
	if err := ahp.CheckName("host", "läptöp"); err == nil || !strings.Contains(err.Error(), "has 'ä' at position 2") {
		t.Errorf("CheckName of läptöp = %v; want the first wrong character and its position", err)
	}
}
