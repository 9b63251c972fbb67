//go:build !race

package browser_test

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestSiteIsAccessibleAndWithoutDeadLinks opens every page of the documentation's site,
// on a phone and on a desktop, light and dark. Each page is accessible and fits the
// screen. Each link has a target, and the search finds pages. make site names the
// site's folder.
func TestSiteIsAccessibleAndWithoutDeadLinks(t *testing.T) {
	dir := os.Getenv("AHP_TEST_SITE")
	if dir == "" {
		t.Skip("make site runs it")
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	var pages []string
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name, e := filepath.Rel(dir, path); e == nil && strings.HasSuffix(name, ".html") && name != "404.html" {
			pages = append(pages, "/"+filepath.ToSlash(name))
		}
		return err
	}))
	if len(pages) < 20 {
		t.Fatalf("%d pages; want all documents", len(pages))
	}
	p := newPage(t)
	anchors := map[string][]string{}           // anchors of each page
	targets, outside := map[string]string{}, 0 // target of each link, with the page that contains it
	for i, page := range pages {
		// Each page is light in one size and dark in the other, because all pages have the
		// same theme.
		sizes := []step{chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), chromedp.EmulateViewport(1280, 800)}
		for j, size := range sizes {
			scheme := []string{"light", "dark"}[(i+j)%2]
			p.do(size, colours(scheme), chromedp.Navigate(server.URL+page))
			p.await("main h1, .VPHome")
			p.holds("the page to run", "document.querySelector('#app').__vue_app__ !== undefined")
			p.settles()
			p.accessible(page + " " + scheme)
			if wide := eval[int](p, "document.documentElement.scrollWidth - innerWidth"); wide > 0 {
				t.Errorf("%s is %d pixels wider than the screen (%d), by %s", page, wide, j,
					eval[string](p, "[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > innerWidth && !e.closest('table, pre')).map((e) => e.outerHTML.slice(0, 200)).join(' | ')"))
			}
			if pictures && (page == "/index.html" || page == "/coming-from.html") {
				p.save("site" + strings.TrimSuffix(page[1:], ".html") + "-" + scheme)
			}
		}
		anchors[page] = eval[[]string](p, "[...document.querySelectorAll('[id]')].map((e) => e.id)")
		for _, link := range eval[[]string](p, "[...document.querySelectorAll('a[href]')].map((a) => a.href)") {
			if strings.HasPrefix(link, server.URL+"/") {
				targets[strings.TrimPrefix(link, server.URL)] = page
			} else {
				outside++
			}
		}
		for _, broken := range eval[[]string](p, "[...document.images].filter((i) => i.complete && i.naturalWidth === 0).map((i) => i.src)") {
			t.Errorf("the page %s: the picture %s is broken; want it shown", page, broken)
		}
	}
	for link, page := range targets {
		path, fragment, _ := strings.Cut(link, "#")
		if strings.HasSuffix(path, "/") {
			path += "index.html"
		}
		fragment, err := url.PathUnescape(fragment)
		must(t, err)
		if _, known := anchors[path]; !known {
			if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
				t.Errorf("the page %s links to %s, which is absent", page, link)
			}
		} else if fragment != "" && !slices.Contains(anchors[path], fragment) {
			t.Errorf("the page %s links to %s, whose anchor is absent", page, link)
		}
	}
	t.Logf("%d pages, %d links between them, %d to the outside", len(pages), len(targets), outside)

	p.do(chromedp.EmulateViewport(1280, 800), chromedp.Navigate(server.URL+"/"))
	p.click(".VPNavBarSearch button")
	p.enter("#localsearch-input", "revoke token")
	p.until("results of the search", patience, func() bool { return p.count("#localsearch-list a.result") > 2 })
	if text := p.text("#localsearch-list"); !strings.Contains(strings.ToLower(text), "revo") {
		t.Errorf("the search shows %.300s; want a result about revocation", text)
	}
	p.leave("document.querySelector('#localsearch-list a.result').click()")
	p.until("a page with the words", patience, func() bool { return strings.Contains(strings.ToLower(p.text("main")), "revo") })
	before := eval[bool](p, "document.documentElement.classList.contains('dark')")
	p.click(".VPSwitchAppearance")
	if eval[bool](p, "document.documentElement.classList.contains('dark')") == before {
		t.Error("the switch between light and dark has no effect; want a change")
	}
}
