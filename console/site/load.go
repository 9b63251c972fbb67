package site

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"

	"ahprelay/console"
)

var loaded = regexp.MustCompile(`"(/[^"]+-[A-Z0-9]{8}\.(?:js|css))"`)

// FirstLoad returns how many files and bytes a browser downloads before the first paint:
// the page, and the files that it names.
func FirstLoad() (files, size int, err error) {
	handler := console.Handler("")
	get := func(path, encoding string) []byte {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Accept-Encoding", encoding)
		answer := httptest.NewRecorder()
		if handler.ServeHTTP(answer, r); answer.Code != http.StatusOK {
			err = fmt.Errorf("%s: status %d", path, answer.Code)
		}
		return answer.Body.Bytes()
	}
	names := []string{"/"}
	for _, m := range loaded.FindAllSubmatch(get("/", ""), -1) {
		names = append(names, string(m[1]))
	}
	for _, name := range names {
		size += len(get(name, "gzip"))
	}
	return len(names), size, err
}
