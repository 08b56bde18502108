import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// Files with relative addresses, so that the console works below any path; nothing inline, which the gateway's
// Content-Security-Policy would refuse.
export default defineConfig({
  base: "./",
  plugins: [svelte()],
  build: {
    outDir: process.env.TQ_CONSOLE ?? "../build/console",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  // for development: npx vite, beside a gateway
  server: { proxy: { "/v1": process.env.TQ_GATEWAY ?? "http://127.0.0.1:8750" } },
});
