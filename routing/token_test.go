package routing

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"pgregory.net/rapid"
)

func TestChannelTokensAreEscaped(t *testing.T) {
	long := "ahp-chat:/" + strings.Repeat("x", 5000)
	for _, test := range []struct{ uri, want string }{
		{"ahp-root://", "ahp-root://"},
		{"ahp-session:/abc", "ahp-session:/abc"},
		{"ahp-session:/3f0e6b1e-8a7d-4a55-9d1f-1c9a4e0f5a10", "ahp-session:/3f0e6b1e-8a7d-4a55-9d1f-1c9a4e0f5a10"},
		{"mcp://server/1?x=y&z#f", "mcp://server/1?x=3Dy&z#f"},
		{"copilotcli:/a.b", "copilotcli:/a=2Eb"},
		{"a b*c>d", "a=20b=2Ac=3Ed"},
		{"=_", "=3D_"},
		{"\x00\r\n\t", "=00=0D=0A=09"},
		{"é", "=C3=A9"},
		{`"'\` + "`", "=22=27=5C=60"},
		// The empty URI is invalid, but still gets a token.
		{"", "=_"},
		{strings.Repeat("x", 160), strings.Repeat("x", 160)},
		{long, long[:94] + "=_08dd3ba3a1bb5d0cf75b3d9ae2e7d4bc3d93c9a9ab3e7b2be3dc4ec0dda02c7b"},
		// A cut never splits an escape.
		{strings.Repeat("x", 92) + strings.Repeat(".", 60), strings.Repeat("x", 92) + "=_"},
		{strings.Repeat("x", 93) + strings.Repeat(".", 60), strings.Repeat("x", 93) + "=_"},
		{strings.Repeat("x", 91) + strings.Repeat(".", 60), strings.Repeat("x", 91) + "=2E=_"},
	} {
		got := ChannelToken(test.uri)
		if len(test.uri) > maxToken/3 && strings.Contains(test.want, hashMark) {
			got, test.want = got[:strings.Index(got, hashMark)+2], test.want[:strings.Index(test.want, hashMark)+2]
		}
		if got != test.want {
			t.Errorf("ChannelToken(%.200q) = %q; want %q", test.uri, got, test.want)
		}
	}
}

// uris returns a generator for URIs whose tokens could easily be equal by mistake.
func uris() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.String(),
		rapid.StringMatching(`[a-z]{1,8}:/[a-z0-9.=_-]{0,20}`),
		rapid.StringOfN(rapid.SampledFrom([]rune("=._2E3Dx")), 0, 8, -1),
		rapid.Custom(func(t *rapid.T) string {
			tail := rapid.StringOfN(rapid.SampledFrom([]rune("=._2Ex")), 0, 70, -1).Draw(t, "tail")
			return strings.Repeat("x", rapid.IntRange(85, 165).Draw(t, "front")) + tail
		}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 4096), func(b []byte) string { return string(b) }),
	)
}

// TestChannelTokenIsSafe computes tokens for random URIs. Different URIs must have different
// tokens. NATS must accept each as a single token in a subject.
func TestChannelTokenIsSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		uri := uris().Draw(t, "uri")
		token := ChannelToken(uri)
		subject := "ahp.v1.t.h.chan." + token
		if !validToken(token) || !server.IsValidLiteralSubject(subject) || strings.Count(subject, ".") != 5 || strings.ContainsAny(token, " \t\r\n") {
			t.Fatalf("ChannelToken(%q) = %q; want one valid part of a subject", uri, token)
		}
		other := uris().Draw(t, "other")
		if (token == ChannelToken(other)) != (uri == other) {
			t.Fatalf("%q and %q have the tokens %q and %q; want them equal only for equal URIs", uri, other, token, ChannelToken(other))
		}
		// If a token is itself used as a URI, its token must differ from it, unless the token
		// equals the first URI.
		if again := ChannelToken(token); again == token && token != uri {
			t.Fatalf("%q has the token %q, which is also that token's own; want a different one", uri, token)
		}
	})
}

func TestTokensWithSeparatorsAreInvalid(t *testing.T) {
	for _, token := range []string{"", ".", "a.b", "*", "a>", "a b", "a\n", "é", "\x7f", strings.Repeat("x", maxToken+1)} {
		if validToken(token) {
			t.Errorf("validToken(%q) = true; want false", token)
		}
	}
}

func BenchmarkChannelToken(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		ChannelToken("ahp-session:/3f0e6b1e-8a7d-4a55-9d1f-1c9a4e0f5a10")
	}
}
