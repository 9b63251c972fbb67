package site

import (
	"bytes"
	"maps"
	"strings"
	"testing"
)

// TestSiteIsReproducible makes a site twice for the same relay, and once for a different relay. The
// first two must be equal. Between relays, only the page and the policies may differ.
func TestSiteIsReproducible(t *testing.T) {
	t.Parallel()
	one, err1 := Of("https://own-relay.example.org/")
	two, err2 := Of("https://own-relay.example.org")
	other, err3 := Of("http://127.0.0.1:8484")
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	if !maps.EqualFunc(one, two, bytes.Equal) {
		t.Error("two sites for one relay differ; want the same files")
	}
	for name, content := range one {
		if own := name == "index.html" || name == "_headers" || strings.HasSuffix(name, "LICENSE"); bytes.Contains(content, []byte("own-relay.example.org")) && !own {
			t.Errorf("the file %s contains the relay's address; want it only in the page and the headers", name)
		} else if !own && !bytes.Equal(content, other[name]) {
			t.Errorf("the file %s differs between relays; want the same", name)
		}
	}
}

// TestSiteHasStrictPolicies makes sites. Each page must contain its policy, and the console's
// policy may permit only the given relays. Invalid addresses must be refused.
func TestSiteHasStrictPolicies(t *testing.T) {
	t.Parallel()
	files, err := Of("https://relay.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if strings.HasSuffix(name, ".html") && !bytes.Contains(content, []byte(`<meta http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;; `)) {
			t.Errorf("the page %s has no content security policy; want one", name)
		}
	}
	page := string(files["index.html"])
	for _, want := range []string{
		"connect-src &#39;self&#39; https://relay.example.com wss://relay.example.com; frame-src &#39;self&#39;;", "script-src &#39;self&#39;;",
		`<meta name="relay" content="https://relay.example.com">`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("index.html lacks %s", want)
		}
	}
	headers := string(files["_headers"])
	for _, want := range []string{"  X-Content-Type-Options: nosniff\n", "\n/\n  Content-Security-Policy: default-src 'none'; ", "frame-ancestors 'none'"} {
		if !strings.Contains(headers, want) {
			t.Errorf("_headers lacks %q:\n%s", want, headers)
		}
	}
	more, err := Of("https://relay.example.com", "https://b.example.com/", "https://relay.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"connect-src &#39;self&#39; https://relay.example.com wss://relay.example.com https://b.example.com wss://b.example.com; frame-src",
		`<meta name="relay" content="https://relay.example.com">`, `<meta name="relays" content="https://b.example.com">`,
	} {
		if !strings.Contains(string(more["index.html"]), want) {
			t.Errorf("the site for two relays lacks %s in index.html", want)
		}
	}
	if _, err := Of(); err == nil {
		t.Error("Of without a relay succeeds; want an error")
	}
	for _, bad := range []string{"", "relay.example.com", "https://relay.example.com/x", "ftp://a", "https://a?b", "https://u@a"} {
		if _, err := Of(bad); err == nil {
			t.Errorf("Of(%q) returns no error; want one", bad)
		}
	}
}
