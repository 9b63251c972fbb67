package console_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/tdewolff/parse/v2"
	"github.com/tdewolff/parse/v2/js"
)

// syntax parses a source file.
func syntax(t *testing.T, name string) *js.AST {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("..", "src", name))
	if err != nil {
		t.Fatal(err)
	}
	loader := api.LoaderTS
	if strings.HasSuffix(name, "x") {
		loader = api.LoaderTSX
	}
	plain := api.Transform(string(source), api.TransformOptions{Loader: loader, Target: api.ES2022, JSX: api.JSXAutomatic, JSXImportSource: "preact", Charset: api.CharsetUTF8})
	if len(plain.Errors) > 0 {
		t.Fatalf("reading %s: %s", name, plain.Errors[0].Text)
	}
	tree, err := js.Parse(parse.NewInputBytes(plain.Code), js.Options{})
	if err != nil {
		t.Fatalf("parsing %s: %v", name, err)
	}
	return tree
}

// A reader collects the texts in a source file: the keys of translated texts (keys, plurals), and
// literals that look like text for people but are not translated (bare).
type reader struct {
	keys    map[string]bool
	plurals map[string]bool
	bare    []string
	skip    map[js.INode]bool
}

func newReader() *reader {
	return &reader{keys: map[string]bool{}, plurals: map[string]bool{}, skip: map[js.INode]bool{}}
}

var (
	// shown lists attributes whose values people see or hear.
	shown = []string{"aria-label", "title", "placeholder", "alt", "label", "children", "says", "yes"}
	// technical lists properties with values that are never displayed.
	technical = []string{"class", "className", "d", "viewBox", "style", "id", "key", "href", "src", "sandbox", "allow", "rel", "accept", "autocomplete"}
	// asks matches functions whose arguments are selectors or names, not text for people.
	asks = regexp.MustCompile(`(querySelector|querySelectorAll|closest|matches|media|matchMedia|setAttribute|toggleAttribute|addEventListener|split|TypeError)$`)
	// prose matches text for people: two words in a row, or a single word that begins with a
	// capital letter.
	prose = regexp.MustCompile(`\pL{2,}[,:]? \pL*\p{Ll}{2,}|^\p{Lu}\p{Ll}{2,}[.…?]?$`)
	word  = regexp.MustCompile(`\pL{2}`)
)

func (r *reader) Enter(n js.INode) js.IVisitor {
	switch n := n.(type) {
	case *js.ImportStmt, *js.ExportStmt:
		if _, is := n.(*js.ImportStmt); is {
			return nil
		}
	case *js.TemplateExpr:
		r.template(n)
	case *js.CallExpr:
		r.call(n)
	case *js.NewExpr:
		if asks.MatchString(n.X.String()) && n.Args != nil {
			r.skipAll(n.Args.List)
		}
	case *js.BinaryExpr:
		r.skip[n.X], r.skip[n.Y] = comparison(n.Op), comparison(n.Op)
	case *js.Property:
		return r.property(n)
	case *js.LiteralExpr:
		if text := literal(n); text != "" && !r.skip[n] && prose.MatchString(text) {
			r.bare = append(r.bare, text)
		}
	}
	return r
}

func (r *reader) Exit(js.INode) {}

func comparison(op js.TokenType) bool {
	return slices.Contains([]js.TokenType{js.EqEqEqToken, js.NotEqEqToken, js.InToken}, op)
}

func (r *reader) skipAll(args []js.Arg) {
	for _, a := range args {
		r.skip[a.Value] = true
	}
}

func (r *reader) template(n *js.TemplateExpr) {
	var key, words strings.Builder
	for i, part := range n.List {
		text := strings.TrimSuffix(string(part.Value[1:]), "${")
		fmt.Fprintf(&key, "%s{%d}", text, i)
		words.WriteString(text + "{}")
	}
	tail := string(n.Tail[1 : len(n.Tail)-1])
	key.WriteString(tail)
	words.WriteString(tail)
	switch {
	case n.Tag == nil:
		if prose.MatchString(words.String()) && !r.skip[n] {
			r.bare = append(r.bare, words.String())
		}
	case n.Tag.String() == "t" || n.Tag.String() == "rich":
		r.keys[key.String()] = true
	}
}

func (r *reader) call(n *js.CallExpr) {
	callee := n.X.String()
	switch {
	case callee == "plural":
		r.plurals[literal(n.Args.List[2].Value)] = true
		r.skipAll(n.Args.List)
	case asks.MatchString(callee):
		r.skipAll(n.Args.List)
	}
}

// property reads an object's property, for example an element's attribute. It adds shown texts to
// bare, and skips technical values.
func (r *reader) property(n *js.Property) js.IVisitor {
	if n.Name == nil {
		return r
	}
	name := strings.Trim(string(n.Name.Literal.Data), `"`)
	if slices.Contains(technical, name) {
		return nil
	}
	if !slices.Contains(shown, name) {
		return r
	}
	values := []js.IExpr{n.Value}
	if list, is := n.Value.(*js.ArrayExpr); is {
		values = nil
		for _, e := range list.List {
			values = append(values, e.Value)
		}
	}
	for _, v := range values {
		if text := literal(v); word.MatchString(text) && !prose.MatchString(text) { // Enter finds prose
			r.bare = append(r.bare, text)
		}
	}
	return r
}

// literal returns a string literal's value, or "".
func literal(n js.INode) string {
	l, is := n.(*js.LiteralExpr)
	if !is || l.TokenType != js.StringToken || len(l.Data) < 2 {
		return ""
	}
	return unescape.Replace(string(l.Data[1 : len(l.Data)-1]))
}

var unescape = strings.NewReplacer(`\\`, `\`, `\'`, `'`, `\"`, `"`, `\n`, "\n")

// untranslated reads testdata/untranslated.txt. It returns, by source file, the literals that look
// like text for people and need no translation.
func untranslated(t *testing.T) map[string][]string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "untranslated.txt"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(content)) {
		if name, text, found := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); found {
			all[name] = append(all[name], strings.ReplaceAll(text, `\n`, "\n"))
		}
	}
	return all
}

// TestEveryTextIsTranslated reads the console's sources and languages. Each text for people must be
// in t, rich or plural, or be listed in untranslated.txt. Each of these must have a text in every
// language.
func TestEveryTextIsTranslated(t *testing.T) {
	t.Parallel()
	all, stay := newReader(), untranslated(t)
	err := fs.WalkDir(os.DirFS(filepath.Join("..", "src")), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".ts") && !strings.HasSuffix(name, ".tsx") || strings.HasPrefix(name, "language") {
			return err
		}
		r := newReader()
		js.Walk(r, syntax(t, name))
		for _, text := range r.bare {
			if !slices.Contains(stay[name], text) {
				t.Errorf("%s: %q is not translated: write t`…`, or list it in testdata/untranslated.txt", name, text)
			}
		}
		for _, text := range stay[name] {
			if !slices.Contains(r.bare, text) {
				t.Errorf("%s has no text %q: remove it from testdata/untranslated.txt", name, text)
			}
		}
		maps.Copy(all.keys, r.keys)
		maps.Copy(all.plurals, r.plurals)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all.keys) < 500 || len(all.plurals) < 10 {
		t.Fatalf("the sources have %d texts and %d plurals; want at least 500 and 10", len(all.keys), len(all.plurals))
	}
	for tag, categories := range map[string][]string{"de": {"one", "other"}, "ja": {"other"}, "ar": {"zero", "one", "two", "few", "many", "other"}} {
		checkCatalogue(t, tag, categories, all)
	}
}

var placeholder = regexp.MustCompile(`\{\d\}`)

// checkCatalogue checks that a language has a text for each key in the sources, with the same
// placeholders and all plural categories, and no further texts.
func checkCatalogue(t *testing.T, tag string, categories []string, all *reader) {
	t.Helper()
	texts := catalogue(t, tag)
	holders := func(s string) string {
		found := placeholder.FindAllString(s, -1)
		slices.Sort(found)
		return strings.Join(slices.Compact(found), "")
	}
	for key := range all.keys {
		text := texts[key][""]
		if text == "" {
			t.Errorf("the catalogue %s has no text for %q", tag, key)
		} else if holders(text) != holders(key) {
			t.Errorf("%s: %q has different placeholders than %q; want the same", tag, text, key)
		}
	}
	for key := range all.plurals {
		forms := texts[key]
		for _, category := range categories {
			if forms[category] == "" && forms[""] == "" {
				t.Errorf("%s: %q has no form for %q; want one", tag, key, category)
			}
		}
		if last := forms["other"] + forms[""]; holders(last) != holders(key) {
			t.Errorf("%s: %q has different placeholders than %q; want the same", tag, last, key)
		}
	}
	for key := range texts {
		if !all.keys[key] && !all.plurals[key] {
			t.Errorf("%s: no source contains %q; want only used texts", tag, key)
		}
	}
}

// catalogue returns a language's texts by key and plural category. The category is "" for a text
// without a number.
func catalogue(t *testing.T, tag string) map[string]map[string]string {
	t.Helper()
	c := &entries{texts: map[string]map[string]string{}}
	js.Walk(c, syntax(t, "language/"+tag+".ts"))
	return c.texts
}

type entries struct{ texts map[string]map[string]string }

func (c *entries) Exit(js.INode) {}

func (c *entries) Enter(n js.INode) js.IVisitor {
	p, is := n.(*js.Property)
	if !is || p.Name == nil {
		return c
	}
	key := nameOf(p)
	c.texts[key] = map[string]string{"": literal(p.Value)}
	if forms, is := p.Value.(*js.ObjectExpr); is {
		c.texts[key] = map[string]string{}
		for _, f := range forms.List {
			c.texts[key][nameOf(&f)] = literal(f.Value)
		}
	}
	return nil
}

func nameOf(p *js.Property) string {
	if name := literal(&p.Name.Literal); name != "" {
		return name
	}
	return strings.Trim(string(p.Name.Literal.Data), `"`)
}
