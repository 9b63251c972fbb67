package auth

import "testing"

// TestTokenFileOfWindows reads tokens as programs on Windows write them.
func TestTokenFileOfWindows(t *testing.T) {
	for text, want := range map[string]string{
		"eyJ.a\n": "eyJ.a", "eyJ.a\r\n": "eyJ.a", "\xef\xbb\xbfeyJ.a\r\n": "eyJ.a", "\xff\xfee\x00y\x00J\x00.\x00a\x00\r\x00\n\x00": "eyJ.a",
		"": "", "\xff\xfe": "", "\xff\xfee": "", "\xef\xbb\xbf \n": "", " ä ": "ä",
	} {
		if got := TokenIn([]byte(text)); got != want {
			t.Errorf("TokenIn(%q) = %q; want %q", text, got, want)
		}
	}
}
