package console

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"testing"
)

// TestFilesStayInTheProgram reads the console's files eight times. They must not be copied to the
// heap, since they are part of the program.
func TestFilesStayInTheProgram(t *testing.T) {
	live := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	const times, most = 8, 256 << 10 // a copy of all files would take 1.4 MB
	before := live()
	var all []map[string]*File
	for range times {
		files, err := readFiles()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files)
	}
	each := (live() - before) / times
	runtime.KeepAlive(all)
	if each > most {
		t.Errorf("a second handler with the console's files takes %d bytes of memory; want at most %d", each, most)
	}
}

// TestBothFormsAreTheSameContent requests each file with and without gzip. Both answers must have
// the same content after decompression, and the right lengths.
func TestBothFormsAreTheSameContent(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	handler := Handler("")
	get := func(method, path, encoding string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, nil)
		r.Header.Set("Accept-Encoding", encoding)
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, r)
		return answer
	}
	compressed := 0
	for path := range files {
		plain, packed, head := get(http.MethodGet, path, ""), get(http.MethodGet, path, "gzip"), get(http.MethodHead, path, "gzip")
		for _, answer := range []*httptest.ResponseRecorder{plain, packed} {
			if got, want := answer.Header().Get("Content-Length"), strconv.Itoa(answer.Body.Len()); got != want {
				t.Errorf("%s: Content-Length is %s; want %s bytes", path, got, want)
			}
		}
		if head.Body.Len() > 0 || head.Header().Get("Content-Length") != packed.Header().Get("Content-Length") {
			t.Errorf("%s: the answer to HEAD has %d bytes and the header %v; want none, and GET's length", path, head.Body.Len(), head.Header())
		}
		content := packed.Body.Bytes()
		if packed.Header().Get("Content-Encoding") == "gzip" {
			compressed++
			r, err := gzip.NewReader(bytes.NewReader(content))
			if err != nil {
				t.Fatal(path, err)
			}
			if content, err = io.ReadAll(r); err != nil {
				t.Fatal(path, err)
			}
		}
		if !bytes.Equal(content, plain.Body.Bytes()) {
			t.Errorf("%s: %d bytes plain, and %d after decompression; want the same", path, plain.Body.Len(), len(content))
		}
	}
	if compressed < len(files)/2 {
		t.Errorf("%d of %d files are sent compressed; want at least half", compressed, len(files))
	}
}
