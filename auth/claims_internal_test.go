package auth

import (
	"encoding/json"
	"fmt"
	"testing"
	"unicode"
)

// TestNamesAreReadOnce builds JSON objects with the name "sk" and a second name, in which each rune
// in turn replaces a letter. If encoding/json reads both names into the same field, uniqueKeys must
// refuse the object.
func TestNamesAreReadOnce(t *testing.T) {
	t.Parallel()
	refused := 0
	for r := range unicode.MaxRune + 1 {
		if r == '"' || r == '\\' || r > unicode.MaxLatin1 && unicode.SimpleFold(r) == r {
			continue
		}
		for _, name := range []string{"s" + string(r), string(r) + "k"} {
			object := fmt.Appendf(nil, `{"sk":1,%q:2}`, name)
			var read struct {
				SK int `json:"sk"`
			}
			if json.Unmarshal(object, &read) != nil {
				continue // %q writes this rune as an escape that JSON lacks
			}
			if unique := uniqueKeys(object); unique != (read.SK == 1) {
				t.Errorf("%s: the decoder reads %d, and uniqueKeys = %v; want true only if it reads 1", object, read.SK, unique)
			} else if !unique {
				refused++
			}
		}
	}
	if refused != 6 { // s, S, U+017F, and k, K, U+212A
		t.Errorf("%d names are refused; want 6", refused)
	}
}
