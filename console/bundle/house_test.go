package bundle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSourcesAreTypedAndWithoutCircles runs CheckSources on the console's sources, which must have
// no circular imports and no type any.
func TestSourcesAreTypedAndWithoutCircles(t *testing.T) {
	if err := CheckSources(".."); err != nil {
		t.Error(err)
	}
}

// TestCirclesAndAnyAreFound runs CheckSources on files with a circular import, a type any, and
// constructs that only look like them. It must report the two faults and nothing else.
func TestCirclesAndAnyAreFound(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"tsconfig.json": "{}",
		"src/main.tsx":  "import './a';\nimport type { T } from './c';\nconst step: T = 'any'; // for any reason\n",
		"src/sw.ts":     "import { f } from './d';\nf();\n",
		"src/a.ts":      "import './b';\nexport const a = 1;\n",
		"src/b.ts":      "import { a } from './a';\nconsole.log(a);\n",
		"src/c.ts":      "import './a';\nexport type T = string;\n",
		"src/d.ts":      "export const f = (x: any) => import('./e').then(() => x);\n",
		"src/e.ts":      "import { f } from './d';\nconsole.log(f);\n",
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := CheckSources(dir)
	if err == nil {
		t.Fatal("no fault is found; want a circle and an any")
	}
	faults := strings.Split(err.Error(), "\n")
	if len(faults) != 2 || !strings.Contains(faults[0], "src/a.ts → src/b.ts → src/a.ts") || !strings.HasSuffix(strings.SplitN(faults[1], ": ", 2)[0], "d.ts:1") {
		t.Errorf("faults: %q; want one circle of a and b, and one any in d.ts", faults)
	}
}
