package agenthost

import (
	"os"
	"path/filepath"
	"slices"

	"ahprelay/ahp"
)

// checkFolders refuses a new session in a folder outside of [Config.Folders].
// It resolves symbolic links.
func (rs *resources) checkFolders(params createSessionParams) error {
	for _, uri := range params.WorkingDirectories {
		if !rs.allows(filePath(uri)) {
			return fail(ahp.CodePermissionDenied, "Sessions may not run in %s: it is outside of the folders of this host", uri)
		}
	}
	return nil
}

// allows reports whether a session may run in a folder.
func (rs *resources) allows(folder string) bool {
	if len(rs.host.cfg.Folders) == 0 {
		return true
	}
	resolved, err := filepath.EvalSymlinks(folder)
	if folder == "" || err != nil {
		return false
	}
	return slices.ContainsFunc(rs.host.cfg.Folders, func(allowed string) bool { return isBelow(allowed, resolved) })
}

// isBelow reports whether a path is in or below a folder.
func isBelow(folder, path string) bool {
	name, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(name)
}

// allowsNew reports whether a new folder may be created at this path for a
// session.
func (rs *resources) allowsNew(folder string) bool {
	if _, _, err := rs.files.find(fileURI(folder)); err != nil {
		return false
	}
	for {
		folder = filepath.Dir(folder)
		if _, err := os.Lstat(folder); err == nil || folder == filepath.Dir(folder) {
			return rs.allows(folder)
		}
	}
}
