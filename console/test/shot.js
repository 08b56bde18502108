// Makes the picture of the README: node shot.js ADDRESS FILE
import { chromium } from 'playwright-core';

const [address, file] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage'] });
const page = await browser.newPage({ viewport: { width: 1200, height: 800 } });
await page.goto(address);
await page.getByText('live', { exact: true }).waitFor();
await page.waitForTimeout(45_000);  // the charts fill
await page.screenshot({ path: file });
await browser.close();
