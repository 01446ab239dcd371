// One page, one script and one style sheet, all files of the engine's own: the Content-Security-Policy of
// octavo_engine/server/endpoints/playground.py allows nothing inline and nothing from elsewhere.
import { defineConfig } from "vite";

export default defineConfig({
  base: "/",
  build: {
    outDir: "../octavo_engine/server/playground_files",
    emptyOutDir: true,
    assetsDir: "playground",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
});
